"""Why a rival cannot be timed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Absent(Exception):  # noqa: N818 - no error: a rival may be missing
    """The reason why a rival cannot be timed."""


def module(name: str) -> Any:
    """Import a module of a rival; Absent if it cannot be imported."""
    try:
        return import_module(name)
    except Exception as error:
        msg = f"{name.partition('.')[0]} cannot be used: {type(error).__name__}"
        raise Absent(msg) from error


def on_gpu(tensor: torch.Tensor, library: str) -> None:
    """Raise Absent if a tensor is on no GPU."""
    if tensor.device.type != "cuda":
        msg = f"{library} needs a GPU"
        raise Absent(msg)
