"""Pieces of a reference compiled by torch for a CPU: the same bits in a fraction of the time."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import torch

from . import PIECE

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide_kernels.registry import Query, Support

    Update = Callable[..., tuple[torch.Tensor, ...]]


def supports(query: Query) -> Support:
    """Return whether there is a compiler for this device."""
    if query.device != "cpu":
        return "it is compiled for a CPU"
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        return "there is no C++ compiler: install g++"
    return True


def whole_pieces(update: Update) -> Update:
    """Return `update`, compiled for pieces of the usual size at its first call with one."""
    compiled: Any = torch.compile(update, dynamic=False, fullgraph=True)

    def chosen(weight: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        result: tuple[torch.Tensor, ...] = (compiled if len(weight) == PIECE else update)(
            weight, *rest
        )
        return result

    return chosen
