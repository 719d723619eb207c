"""Descriptions of Triton launches, from which the kernels can be compiled without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen(kw_only=True)
class ShippedKernel:
    """One kernel with one set of constants, compiled in the same way as at a launch."""

    name: str
    """Name of the kernel and its constants; `tests/kernels/budgets.json` uses the same name."""
    module: str
    """The kernel's module, such as `"neaptide_kernels.int8.kernel"`."""
    kernel: str
    types: Mapping[str, str]
    """Triton type of each argument that is not a constant, such as `"*bf16"` or `"i64"`."""
    constants: Mapping[str, Any]
    aligned: tuple[str, ...] = ()
    """Names of arguments that are divisible by 16, such as addresses of torch tensors."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Launch options such as `num_warps`."""
    targets: tuple[int, ...] = ()
    """Compute capabilities times ten for which the kernel is launched; empty: all."""
