"""`Tensor.tolist` and `Tensor.numpy` of unknown values, which do not pass PyTorch's dispatcher."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .assumptions import UnplannableError, place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .unknown import Unknown

_SHOWING = torch._tensor_str.__file__  # noqa: SLF001 - the module that prints tensors


@contextmanager
def reads_by(mode: Unknown) -> Iterator[None]:
    """Within this context, `tolist` and `numpy` of tensors that are unknown in `mode` return ones.

    Integers are refused: they are sizes or places mostly, and 1 would make a wrong plan of them.
    """
    to_list, to_numpy = torch.Tensor.tolist, torch.Tensor.numpy

    def tolist(tensor: torch.Tensor) -> Any:
        return _read(mode, "tolist", tensor, to_list)

    def numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
        return _read(mode, "numpy", tensor, lambda one: to_numpy(one, force=force))

    tensors: Any = torch.Tensor
    tensors.tolist, tensors.numpy = tolist, numpy
    try:
        yield
    finally:  # the originals are methods of the base class
        del torch.Tensor.tolist, torch.Tensor.numpy


def _read(
    mode: Unknown, name: str, tensor: torch.Tensor, original: Callable[[torch.Tensor], Any]
) -> Any:
    if tensor.layout is not torch.strided or not mode.is_unknown(tensor):
        return original(tensor)
    if tensor.requires_grad and name == "numpy":
        return original(tensor)  # which raises an error
    shown = sys._getframe(2).f_code.co_filename == _SHOWING  # noqa: SLF001 - who asks
    value = 1 if shown else _one(mode, name, tensor)
    with _disable_current_modes():
        return original(torch.full((), value, dtype=tensor.dtype).expand(tensor.shape))


def _one(mode: Unknown, name: str, tensor: torch.Tensor) -> Any:
    if not tensor.dtype.is_floating_point and tensor.dtype is not torch.bool:
        msg = (
            f"{name}() reads {tensor.numel()} integers whose values a plan does not have, and "
            f"which may be sizes or places; such a model cannot be planned @ {place()}"
        )
        raise UnplannableError(msg)
    return mode.read(tensor)
