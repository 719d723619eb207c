"""Checks of Muon's options and parameters. Each error is one line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .matrices import rows_of
from .polynomials import POLYNOMIALS

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = ("muon", "adamw")
NORMS = ("auto", "schatten", "frobenius")
NS_DTYPES = ("auto", "float32", "bfloat16")
SCALES = ("match_rms_adamw", "original")
_MATRIX = 2
"""Dimensions of a matrix."""
_BETAS = 2


def out_of_range(group: Mapping[str, Any]) -> dict[str, bool]:
    """Return for each option of a group whether its value is out of range."""
    betas = group["betas"]
    return {
        "kind": group["kind"] not in KINDS,
        "lr": not 0.0 <= float(group["lr"]) < math.inf,
        "momentum": not 0.0 <= group["momentum"] < 1.0,
        "ns_steps": group["ns_steps"] < 1,
        "polynomial": group["polynomial"] not in POLYNOMIALS,
        "norm": group["norm"] not in NORMS,
        "ns_dtype": group["ns_dtype"] not in NS_DTYPES,
        "scale": group["scale"] not in SCALES,
        "split": not group["split"] or min(group["split"]) < 1,
        "weight_decay": not 0.0 <= group["weight_decay"] < math.inf,
        "betas": len(betas) != _BETAS or not all(0.0 <= beta < 1.0 for beta in betas),
        "eps": not 0.0 < group["eps"] < math.inf,
    }


def check_matrices(group: Mapping[str, Any], place: int) -> None:
    """Raise ValueError for the first parameter of a `muon` group that holds no matrices.

    `place` is the index of the group, for the message.
    """
    if group["kind"] != "muon":
        return
    for index, param in enumerate(group["params"]):
        what = f"Muon: parameter {index} of group {place}, {param.dtype} {list(param.shape)},"
        stacked = bool(group["stacked"])
        if param.dim() < _MATRIX + stacked or not param.numel():
            kind = "no stack of matrices" if stacked else "no matrix"
            msg = f"{what} is {kind}; put it into a group of kind 'adamw'"
            raise ValueError(msg)
        try:
            rows_of(param.shape[1 if stacked else 0], group["split"])
        except ValueError as error:
            msg = f"{what} cannot be split: {error}; give the proportions of its parts"
            raise ValueError(msg) from None
