"""Manifest of `bitsandbytes`, and the options of its optimizers. Imports no torch."""

from __future__ import annotations

from typing import Literal

import attrs

from neaptide import PluginSpec, field
from neaptide_toolkit.optimizers import EPS, FACTOR, SEED, Rounding, decays, rounding_field

Algorithm = Literal["adamw", "lion"]


@attrs.frozen(kw_only=True)
class BitsandbytesOptions:
    """`[optimizer.options]` of `bitsandbytes`."""

    algorithm: Algorithm = field("adamw", help="the update: `adamw` or `lion`")
    betas: tuple[float, float] = field(
        (0.9, 0.999), validator=decays, help="decay rates; of lion often `[0.9, 0.99]`"
    )
    eps: float = field(
        1e-8, validator=EPS, help="of adamw: added to the square root of the second moment"
    )
    weight_decay: float = field(
        1e-2, validator=FACTOR, help="decoupled weight decay, multiplied by the learning rate"
    )
    paged: bool = field(
        False,
        help="keep the state in memory that CUDA moves between GPU and RAM by pages; on a GPU only",
    )
    rounding: Rounding = rounding_field()
    seed: int = field(0, validator=SEED, help="seed of stochastic rounding")


SPEC = PluginSpec(
    name="bitsandbytes",
    load="neaptide_bitsandbytes.plugin:BitsandbytesPlugin",
    schemes={"optimizer:bitsandbytes"},
    options={"optimizer:bitsandbytes": BitsandbytesOptions},
    search_space=({"optimizer": {"name": "bitsandbytes"}},),
    summary="The 8-bit AdamW and Lion of bitsandbytes, also paged.",
    numerics="changes-training",
)
