"""Settings and manifest of `torchao-float8`. Imports no torch."""

from __future__ import annotations

from typing import Literal

import attrs

from neaptide import PluginSpec, field

Recipe = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"]


@attrs.frozen(kw_only=True)
class TorchaoFloat8Config:
    """`[plugins.torchao-float8]`."""

    recipe: Recipe = field(
        "tensorwise",
        help="torchao's recipe of scales: one for a tensor, one for a row, or one for a row with "
        "weight gradients in full precision",
    )
    leave_out: tuple[str, ...] = field(
        (), help="parts of names of layers that stay as they are, such as `lm_head`"
    )
    emulate: bool = field(
        False,
        help="multiply the rounded numbers in full precision, on hardware without float8: the "
        "numerics of float8 without its speed",
    )


SPEC = PluginSpec(
    name="torchao-float8",
    load="neaptide_torchao.float8.plugin:TorchaoFloat8",
    config=TorchaoFloat8Config,
    summary="torchao's float8 training: linear layers multiply in float8.",
    conflicts={"low-precision-backward", "fused-layers"},
    numerics="changes-training",
)
