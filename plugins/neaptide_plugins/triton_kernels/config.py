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
        help="use of timings to choose a provider: `off` uses priorities; `cached` uses the "
        "timings that `neaptide kernels tune` saved; `tune` also times calls for which a provider "
        "has no timing yet",
    )
    providers: dict[str, str] = field(
        attrs.Factory(dict),
        help="required providers by op, such as quantize_int8 = 'triton'; the run stops at a call "
        "that such a provider does not support",
    )


SPEC = PluginSpec(
    name="triton-kernels",
    load="neaptide_plugins.triton_kernels.plugin:TritonKernels",
    config=TritonKernelsConfig,
    summary="Runs ops by Triton kernels on a GPU, if they agree with the reference.",
    numerics="tolerance",
    rtol=1e-5,
)
