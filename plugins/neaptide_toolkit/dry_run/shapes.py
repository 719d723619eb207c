"""The shapes that an operation returns: asked of the meta device, once for each kind of call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.utils._pytree import tree_map

from neaptide.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

_BOUNDS: dict[Any, Callable[..., tuple[tuple[int, ...], torch.dtype]]] = {
    torch.ops.aten.nonzero.default: lambda x: ((x.numel(), x.ndim), torch.int64),
    torch.ops.aten.masked_select.default: lambda x, _: ((x.numel(),), x.dtype),
}
"""Operations whose shape depends on values: the largest shape that they can return."""


@attrs.frozen
class Shape:
    """What is known of a tensor without its values."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Shape:
        """Return the shape of a tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def made(self, device: str) -> torch.Tensor:
        """Return a tensor of this shape, without values."""
        made: torch.Tensor = torch.empty_strided(
            self.size, self.stride, dtype=self.dtype, device=device
        )
        return made


class Shapes:
    """Returns the shapes of the tensors that an operation makes. Equal calls are asked once."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what `operation` returns, with a `Shape` in the place of each tensor.

        Raises:
            ModelError: PyTorch cannot tell it without the values.
        """
        try:
            key = (operation, _key(args), _key(tuple(kwargs.items())))
            if key not in self._known:
                self._known[key] = _asked(operation, args, kwargs)
            return self._known[key]
        except TypeError:  # an argument has no hash
            return _asked(operation, args, kwargs)


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if isinstance(value, float | int | bool):
        return (type(value), value)  # 1, 1.0 and True are equal, but make other types
    hash(value)
    return value


def _asked(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if operation in _BOUNDS:
        size, dtype = _BOUNDS[operation](*args)
        return Shape.of(torch.empty(size, dtype=dtype, device="meta"))
    on_meta = tree_map(_without_values, (args, kwargs))
    try:
        made = operation(*on_meta[0], **on_meta[1])
    except NotImplementedError as error:
        msg = (
            f"PyTorch cannot tell the shape that {operation} returns without the values; "
            f"such a model cannot be planned"
        )
        raise ModelError(msg) from error
    return tree_map(lambda one: Shape.of(one) if isinstance(one, torch.Tensor) else one, made)


def _without_values(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Shape.of(value).made("meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    return None if isinstance(value, torch.Generator) else value
