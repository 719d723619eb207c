"""The shapes that an operation returns: asked of the meta device, once for each kind of call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.utils._pytree import tree_map

from neaptide.errors import described
from neaptide_toolkit.tensors import nested_tensors

from .assumptions import UnplannableError, place, refuse_layouts
from .bounds import bound_of, without_masks
from .layouts import with_channels_last
from .reserved import reserved

if TYPE_CHECKING:
    from collections.abc import Callable


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

    @property
    def nbytes(self) -> int:
        """Return the bytes of all elements."""
        return torch.Size(self.size).numel() * self.dtype.itemsize

    def made(self) -> torch.Tensor:
        """Return a tensor of this shape on the CPU, without values."""
        return reserved(self.size, self.stride, self.dtype)

    def on_meta(self) -> torch.Tensor:
        """Return a tensor of this shape on the meta device."""
        made: torch.Tensor = torch.empty_strided(
            self.size, self.stride, dtype=self.dtype, device="meta"
        )
        return made


class Shapes:
    """Returns the shapes of the tensors that an operation makes. Equal calls are asked once.

    Args:
        count: returns how many elements of a tensor are not 0, or how many can be.
        note: called with what is assumed if a shape depends on values.
    """

    def __init__(self, count: Callable[[torch.Tensor], int], note: Callable[[str], None]) -> None:
        self._count, self._note = count, note
        self._known: dict[Any, Any] = {}

    def of(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what `operation` returns, with a `Shape` in the place of each tensor.

        If it depends on values, the shapes are the largest ones.

        Raises:
            UnplannableError: PyTorch cannot tell it without the values, or the call is wrong.
        """
        bound = bound_of(operation, args, kwargs, self._count)
        if bound is not None:
            if bound[1]:
                self._note(bound[1])
            return _shapes(operation, bound[0])
        args = without_masks(operation, args, self._count)
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
    on_meta = tree_map(_without_values, (args, kwargs))
    try:
        made = _shapes(operation, operation(*on_meta[0], **on_meta[1]))
        return with_channels_last(operation, args, made)
    except NotImplementedError as error:
        msg = (
            f"PyTorch cannot tell the shape that {operation} returns without the values; "
            f"such a model cannot be planned @ {place()}"
        )
        raise UnplannableError(msg) from error
    except UnplannableError:
        raise
    except RuntimeError as error:
        given = [tuple(one.shape) for one in nested_tensors(args)]
        msg = (
            f"{operation} of tensors of the shapes {given} fails ({described(error)}); if the "
            f"model runs, its shapes depend on values, and it cannot be planned @ {place()}"
        )
        raise UnplannableError(msg) from error


def _shapes(operation: Any, made: Any) -> Any:
    refuse_layouts(nested_tensors(made), operation)
    return tree_map(lambda one: Shape.of(one) if isinstance(one, torch.Tensor) else one, made)


def _without_values(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Shape.of(value).on_meta()
    if isinstance(value, torch.device):
        return torch.device("meta")
    return None if isinstance(value, torch.Generator) else value
