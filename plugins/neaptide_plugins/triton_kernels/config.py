"""Settings and manifest of `triton-kernels`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import in_

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class TritonKernelsConfig:
    """`[plugins.triton-kernels]`."""

    tuning: Literal["off", "cached", "tune"] = field(
        "cached",
        validator=in_(("off", "cached", "tune")),
        help="choose providers by what was measured on this machine: never, where `neaptide "
        "kernels tune` has measured, or measuring what is met for the first time",
    )
    providers: dict[str, str] = field(
        attrs.Factory(dict),
        help="providers to insist on, by op, such as quantize_int8 = 'triton'; a run that such "
        "a provider cannot serve stops",
    )


SPEC = PluginSpec(
    name="triton-kernels",
    load="neaptide_plugins.triton_kernels.plugin:TritonKernels",
    config=TritonKernelsConfig,
    summary="Runs ops by Triton kernels on a GPU, where they agree with the reference.",
    numerics="tolerance",
    rtol=1e-5,
)
