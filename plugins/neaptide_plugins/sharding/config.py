"""Settings and manifest of `sharding`."""

from __future__ import annotations

from typing import Any, Literal, get_args

import attrs
from attrs.validators import and_, ge, gt, in_

from neaptide.config import field
from neaptide.plugin import PluginSpec

Stage = Literal["replicate", 1, 2, 3, "hybrid"]
"""What each process has a part of, by the stages of ZeRO."""
Offload = Literal["none", "cpu", "pinned"]
"""Where the rows of a process are between passes."""
ParamDtype = Literal["own", "bfloat16"]
"""What weights are gathered and computed in."""
Saves = Literal["all", "first"]
"""Which processes write a checkpoint."""
DIVIDES: tuple[Stage, ...] = (2, 3, "hybrid")
"""The stages in which a process has rows of the weights between steps."""
REGATHERS: tuple[Stage, ...] = (3, "hybrid")
"""The stages that free the weights of a block after its forward, and gather them again."""


def _of_hybrid(config: Any, _: attrs.Attribute[int], value: int) -> None:
    if value and config.stage != "hybrid":
        msg = f'is for stage = "hybrid" only (got {value}); remove it'
        raise ValueError(msg)


def _of_rows(config: Any, attribute: attrs.Attribute[str], value: str) -> None:
    if value != attribute.default and config.stage not in DIVIDES:
        msg = (
            f'needs stage = 2, 3 or "hybrid", in which a process has rows of the weights (got '
            f"{value!r} with stage = {config.stage!r}); change the stage, or remove it"
        )
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class ShardingConfig:
    """`[plugins.sharding]`."""

    stage: Stage = field(
        "replicate",
        validator=in_(get_args(Stage)),
        help="what is divided among the processes: 1 optimizer state; 2 also gradients, and "
        "weights between steps; 3 also weights in a step; `hybrid` as 3, among the processes of a "
        "node, and each node has the model; `replicate` nothing",
    )
    shard_size: int = field(
        0,
        validator=and_(ge(0), _of_hybrid),
        help="with `hybrid`, number of processes that divide one copy of the model; 0: those of a "
        "node",
    )
    offload: Offload = field(
        "none",
        validator=and_(in_(get_args(Offload)), _of_rows),
        help="with the stages 2, 3 and `hybrid`, where a process has its rows of weights, "
        "gradients and state, and updates them: `none` on its GPU, `cpu` in RAM, `pinned` in "
        "pinned RAM, from which copies run beside the computation",
    )
    param_dtype: ParamDtype = field(
        "own",
        validator=and_(in_(get_args(ParamDtype)), _of_rows),
        help="with the stages 2, 3 and `hybrid`, the dtype to which weights are cast before they "
        "are gathered, and in which the model computes: `bfloat16`, or their `own`; rows, sums of "
        "gradients, state and update keep theirs",
    )
    saves: Saves = field(
        "all",
        validator=in_(get_args(Saves)),
        help="with all stages but `replicate`, which processes write a checkpoint: `all`, each its "
        "rows, or `first`, which gets what the others have",
    )
    timeout: float = field(
        1800.0,
        validator=gt(0.0),
        help="longest wait for another process, in seconds; longer than a save or an evaluation",
    )
    check_weights: bool = field(
        default=True,
        help="compare a part of the weights between the processes at each step, bit by bit",
    )
    logs: bool = field(
        default=False,
        help="each process but the first writes what it prints and logs to the file "
        "`ranks/NUMBER.log` of the run directory",
    )


SPEC = PluginSpec(
    name="sharding",
    load="neaptide_plugins.sharding.plugin:Sharding",
    config=ShardingConfig,
    summary="Trains one model in several processes: divides batches, and the model.",
    claims={"processes"},
    before={"mixed-precision"},
    after={"gradient-accumulation", "delayed-verdict"},
    numerics="exact",
)
