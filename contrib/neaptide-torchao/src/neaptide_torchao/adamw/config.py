"""Manifest of `torchao-adamw`, and the options of its optimizer. Imports no torch."""

from __future__ import annotations

from typing import Literal, get_args

import attrs
from attrs.validators import in_

from neaptide import PluginSpec, field
from neaptide_toolkit.optimizers import EPS, FACTOR, SEED, Rounding, decays, rounding_field

Kept = Literal["8bit", "4bit", "fp8"]


@attrs.frozen(kw_only=True)
class TorchaoAdamwOptions:
    """`[optimizer.options]` of `torchao-adamw`."""

    kept: Kept = field(
        "8bit", validator=in_(get_args(Kept)), help="form of both moments: `8bit`, `4bit` or `fp8`"
    )
    betas: tuple[float, float] = field(
        (0.9, 0.999), validator=decays, help="decay of the first and of the second moment"
    )
    eps: float = field(1e-8, validator=EPS, help="added to the square root of the second moment")
    weight_decay: float = field(
        1e-2, validator=FACTOR, help="decoupled weight decay, multiplied by the learning rate"
    )
    block_size: int | None = field(
        None,
        validator=attrs.validators.optional(in_((64, 128, 256, 512, 1024))),
        help="elements that share a scale; by default 256, or 128 for `4bit`",
    )
    compiled: bool = field(
        True,
        help="compile the update with torch.compile, as torchao does; `false`: slower steps, no "
        "wait at the first",
    )
    rounding: Rounding = rounding_field()
    seed: int = field(0, validator=SEED, help="seed of stochastic rounding")


SPEC = PluginSpec(
    name="torchao-adamw",
    load="neaptide_torchao.adamw.plugin:TorchaoAdamwPlugin",
    schemes={"optimizer:torchao-adamw"},
    options={"optimizer:torchao-adamw": TorchaoAdamwOptions},
    search_space=({"optimizer": {"name": "torchao-adamw"}},),
    summary="torchao's AdamW, both moments in 8 bits, 4 bits or fp8.",
    numerics="changes-training",
)
