"""Parts of saved tensors, under the names and in the dtypes in which they are exported."""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neaptide.checkpoint import TensorItem
from neaptide.errors import ConfigError
from neaptide.text import one_line
from neaptide_toolkit.machine.pretended import as_if

if TYPE_CHECKING:
    from collections.abc import Iterator


class ReadableTensor(Protocol):
    """A tensor that is read when it is needed, such as a `SavedTensor`."""

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    def read(self) -> torch.Tensor:
        """Return it, in CPU memory."""

    def read_part(self, start: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return contiguous elements, from element `start` on, as a tensor of `shape`."""


@attrs.frozen
class View:
    """A strided part of a saved tensor; all numbers count elements."""

    name: str
    """Of the saved tensor."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    __repr__ = one_line

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements follow each other in the saved tensor."""
        plain = whole(self.name, self.shape).stride
        sized = zip(self.shape, self.stride, plain, strict=True)
        return all(size == 1 or one == other for size, one, other in sized)


def whole(name: str, shape: tuple[int, ...]) -> View:
    """Return the view of a whole tensor."""
    stride = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return View(name, shape, stride, 0)


def item(name: str, view: View, saved: ReadableTensor, dtype: torch.dtype) -> TensorItem:
    """Return the item that reads a part of a saved tensor when it is written."""
    return TensorItem(name, dtype, view.shape, partial(_lent, view, saved, dtype))


@contextmanager
def _lent(view: View, saved: ReadableTensor, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    yield _converted(_read(view, saved), dtype, view.name)


def _read(view: View, saved: ReadableTensor) -> torch.Tensor:
    if view.is_contiguous:
        return saved.read_part(view.start, view.shape)
    return saved.read().as_strided(view.shape, view.stride, view.start)


def _converted(tensor: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    if tensor.dtype == dtype:
        return tensor
    made = tensor.to(dtype)
    if dtype == torch.float16 and made.isinf().sum() > tensor.isinf().sum():
        largest = torch.finfo(dtype).max
        msg = f"{name!r:.100} has values beyond {largest:g}; choose bf16 or fp32 @ --dtype"
        raise ConfigError(msg)
    return made


@contextmanager
def outlined() -> Iterator[None]:
    """Within this context models are built without values, and no weights are read."""
    with as_if("cpu"), torch.device("meta"):
        yield


@contextmanager
def copies_as_views() -> Iterator[None]:
    """Within this context a copy of a tensor shares its storage, so that its source is known.

    Only for tensors without values.
    """
    with _Sharing():  # type: ignore[no-untyped-call]  # torch leaves it so
        yield


def storage(tensor: torch.Tensor) -> int:
    """Return what is the same for tensors, also without values, that share a storage."""
    found: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - there is no other name for it
    return found


class _Sharing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is torch.ops.aten.clone.default:
            return args[0].detach()
        return func(*args, **(kwargs or {}))
