"""Manifest of `muon`, and the options of the optimizer it builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs
from attrs.validators import and_, ge, gt, in_, le, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.optimizers import EPS, FACTOR, decays
from neaptide_toolkit.sensitive import SENSITIVE_WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_HIDDEN = (*SENSITIVE_WEIGHTS, "*positions*", "fc.*", "score.*", "output.*", "*.A_log")
"""Names of embeddings and output heads, as models in use have them; `fc.*` is a ResNet's.
Mamba's `A_log` is no matrix, though it has two dimensions."""

FUSED = {"*qkv*": (1, 1, 1), "*in_proj_weight": (1, 1, 1)}
"""Names of weights that are query, key and value in one, and the proportions of their rows."""


def _proportions(
    _: Any, attribute: attrs.Attribute[Any], value: Mapping[str, Sequence[int]]
) -> None:
    for pattern, parts in value.items():
        if not parts or min(parts) < 1:
            msg = (
                f"{attribute.name!r} must give the rows of each part as numbers from 1, such as "
                f"[1, 1, 1] (got {list(parts)} for {pattern!r})"
            )
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class MuonOptions:
    """`[optimizer.options]` of `muon`."""

    momentum: float = field(
        0.95, validator=and_(ge(0.0), lt(1.0)), help="decay of the momentum of a matrix"
    )
    nesterov: bool = field(
        default=True, help="look ahead: orthogonalise the momentum as it will be"
    )
    ns_steps: int = field(
        5, validator=and_(ge(1), le(20)), help="Newton-Schulz steps that orthogonalise an update"
    )
    ns_dtype: Literal["auto", "float32", "bfloat16"] = field(
        "auto",
        validator=in_(("auto", "float32", "bfloat16")),
        help="in which they are computed; `auto` is bfloat16 on a GPU, else float32",
    )
    scale: Literal["match_rms_adamw", "original"] = field(
        "match_rms_adamw",
        validator=in_(("match_rms_adamw", "original")),
        help="factor of a matrix's update: 0.2 * sqrt(max(rows, columns)), with which AdamW's "
        "rates fit, or the original sqrt(max(1, rows / columns))",
    )
    weight_decay: float = field(0.1, validator=FACTOR, help="decoupled; times the rate")
    adamw_lr_ratio: float = field(
        1.0,
        validator=and_(gt(0.0), le(1e6)),
        help="rate of what AdamW updates, as a multiple of `optimizer.lr`",
    )
    adamw_betas: tuple[float, float] = field(
        (0.9, 0.95), validator=decays, help="AdamW's decays of its moments"
    )
    adamw_eps: float = field(
        1e-8,
        validator=EPS,
        help="added to the root of AdamW's second moment",
    )
    adamw: tuple[str, ...] = field(
        NOT_HIDDEN,
        help="patterns of weights that AdamW updates: embeddings and heads; what is no matrix "
        "it updates in any case",
    )
    split: dict[str, tuple[int, ...]] = field(
        attrs.Factory(FUSED.copy),
        validator=_proportions,
        help="patterns of weights that are several matrices in one, and the proportions of "
        "their rows",
    )
    stacked: tuple[str, ...] = field(
        ("*experts*",),
        help="patterns of weights of three dimensions that are a stack of matrices",
    )
    convolutions: bool = field(
        default=True,
        help="treat convolutions as matrices [out, in * kernel]; otherwise AdamW updates them",
    )


SPEC = PluginSpec(
    name="muon",
    load="neaptide_plugins.muon.plugin:MuonPlugin",
    schemes={"optimizer:muon"},
    options={"optimizer:muon": MuonOptions},
    summary="Muon: momentum orthogonalised, for hidden matrices; AdamW for everything else.",
    numerics="changes-training",
)
