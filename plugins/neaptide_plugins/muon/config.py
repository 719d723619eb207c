"""Manifest of `muon`. Defines the options of the optimizer that this plugin builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs
from attrs.validators import and_, ge, gt, in_, le, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec
from neaptide_toolkit.optimizers import (
    EPS,
    FACTOR,
    Rounding,
    decays,
    rounding_field,
    rounding_seed_field,
)
from neaptide_toolkit.sensitive import SENSITIVE_WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_HIDDEN = (*SENSITIVE_WEIGHTS, "*positions*", "fc.*", "score.*", "output.*", "*.A_log")
"""Name patterns of embeddings and output heads in common models; `fc.*` is the head of a ResNet.
Mamba's `A_log` has two dimensions but is not a matrix."""

FUSED = {"*qkv*": (1, 1, 1), "*in_proj_weight": (1, 1, 1)}
"""Name patterns of fused query-key-value weights, and the proportions of the rows of query, key
and value."""


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
        default=True, help="Nesterov momentum: apply the gradient to the momentum once more"
    )
    ns_steps: int = field(
        3, validator=and_(ge(1), le(20)), help="Newton-Schulz steps that orthogonalise an update"
    )
    polynomial: Literal["polar-express", "jordan"] = field(
        "polar-express",
        validator=in_(("polar-express", "jordan")),
        help="coefficients of the steps: the best ones for their number, or those of "
        "`torch.optim.Muon`, which takes five steps",
    )
    norm: Literal["auto", "schatten", "frobenius"] = field(
        "auto",
        validator=in_(("auto", "schatten", "frobenius")),
        help="what a matrix is divided by before the steps: the norm of Schatten with exponent 8 "
        "is nearer to the largest singular value; `auto` is that of Frobenius with `jordan`",
    )
    ns_dtype: Literal["auto", "float32", "bfloat16"] = field(
        "auto",
        validator=in_(("auto", "float32", "bfloat16")),
        help="dtype of the Newton-Schulz steps; `auto` is bfloat16 on a GPU, and for matrices of "
        "at least 96 rows and columns on a CPU with instructions for it, else float32",
    )
    scale: Literal["match_rms_adamw", "original"] = field(
        "match_rms_adamw",
        validator=in_(("match_rms_adamw", "original")),
        help="factor of a matrix's update: `match_rms_adamw` is 0.2 * sqrt(max(rows, columns)), "
        "which suits AdamW's learning rates; `original` is sqrt(max(1, rows / columns))",
    )
    weight_decay: float = field(
        0.1, validator=FACTOR, help="decoupled weight decay, multiplied by the learning rate"
    )
    adamw_lr_ratio: float = field(
        1.0,
        validator=and_(gt(0.0), le(1e6)),
        help="AdamW's learning rate, as a multiple of `optimizer.lr`",
    )
    adamw_betas: tuple[float, float] = field(
        (0.9, 0.95), validator=decays, help="decay of AdamW's first and second moment"
    )
    adamw_eps: float = field(
        1e-8,
        validator=EPS,
        help="added to the square root of AdamW's second moment",
    )
    adamw: tuple[str, ...] = field(
        NOT_HIDDEN,
        help="name patterns of weights that AdamW updates: embeddings and heads; AdamW also "
        "updates all parameters that are not matrices",
    )
    split: dict[str, tuple[int, ...]] = field(
        attrs.Factory(FUSED.copy),
        validator=_proportions,
        help="name patterns of weights that hold several matrices, and the proportions of the "
        "matrices' rows",
    )
    stacked: tuple[str, ...] = field(
        ("*experts*",),
        help="name patterns of weights of three dimensions that are stacks of matrices",
    )
    convolutions: bool = field(
        default=True,
        help="treat convolutions as matrices [out, in * kernel]; otherwise AdamW updates them",
    )
    rounding: Rounding = rounding_field()
    seed: int = rounding_seed_field()


SPEC = PluginSpec(
    name="muon",
    load="neaptide_plugins.muon.plugin:MuonPlugin",
    schemes={"optimizer:muon"},
    options={"optimizer:muon": MuonOptions},
    summary="Muon (orthogonalised momentum) for hidden matrices, AdamW for everything else.",
    numerics="changes-training",
)
