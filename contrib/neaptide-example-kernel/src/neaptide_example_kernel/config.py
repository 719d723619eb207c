"""The manifest. This module imports no torch."""

from neaptide import PluginSpec

SPEC = PluginSpec(
    name="example-kernel",
    load="neaptide_example_kernel.plugin:ExampleKernel",
    summary="Dequantizes int8 blocks that divide the tensor, without a copy of the codes.",
)
