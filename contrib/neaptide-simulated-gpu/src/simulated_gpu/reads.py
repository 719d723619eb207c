"""The host's reads by NumPy and `tolist`, which are no operations of torch."""

from __future__ import annotations

import functools
from typing import Any

import torch

from simulated_gpu import _C

_READERS = ("numpy", "tolist", "__dlpack__")
"""`__array__` and `numpy.asarray` call the first."""


def install() -> None:
    """Note a read of the host whenever one of them is called."""
    for name in _READERS:
        setattr(torch.Tensor, name, _noted(name, getattr(torch.Tensor, name)))


def _noted(name: str, read: Any) -> Any:
    @functools.wraps(read)
    def reads(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        found = read(tensor, *args, **options)
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            _C.host_read(name, tensor)
        return found

    return reads
