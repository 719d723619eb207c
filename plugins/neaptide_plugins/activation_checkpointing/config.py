"""Settings and manifest of `activation-checkpointing`."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, gt, le

from neaptide.api.phases import TRAINED, TrainedPhase
from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class ActivationCheckpointingConfig:
    """`[plugins.activation-checkpointing]`."""

    interval: int = field(
        8,
        validator=ge(1),
        help="number of blocks in a segment; only the inputs of the first block are kept",
    )
    ratio: float = field(
        1.0,
        validator=and_(gt(0.0), le(1.0)),
        help="share of the segments that are checkpointed; these segments are spread evenly over "
        "the model",
    )
    blocks: str | tuple[str, ...] | None = field(
        None,
        help="pattern of the blocks' names, such as `model.layers.*`, or a list of patterns; `**` "
        "stands for any number of names; by default the repeated children of `ModuleList`, "
        "`Sequential` and `ModuleDict`",
    )
    exclude: tuple[str, ...] = field(
        (), help="patterns of the names of blocks that keep their activations"
    )
    save_ops: tuple[str, ...] = field(
        (),
        help="ops whose outputs are kept instead of computed again: `matmul`, `attention`, or "
        "names such as `aten.convolution`",
    )
    phases: tuple[TrainedPhase, ...] = field(TRAINED, help="phases in which to checkpoint")


SPEC = PluginSpec(
    name="activation-checkpointing",
    load="neaptide_plugins.activation_checkpointing.plugin:ActivationCheckpointing",
    config=ActivationCheckpointingConfig,
    summary="Keeps only the inputs of segments of blocks and recomputes the rest, exactly.",
    claims={"activations"},
    search_space=({"plugins": {"activation-checkpointing": {"interval": 1}}},),
    phases=TRAINED,
    converts={"deepspeed": "neaptide_plugins.activation_checkpointing.deepspeed:convert"},
    numerics="exact",
)
