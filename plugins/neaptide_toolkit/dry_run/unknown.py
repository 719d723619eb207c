"""A mode in which operations make tensors without computing their values.

The tensors are ordinary CPU tensors. Their memory is reserved, but never written, so that it takes
no RAM. Views, storages, addresses and autograd are PyTorch's own. Small tensors whose values are
known, such as counters and masks, are computed. Where code reads the value of an unknown tensor,
it gets 1 or True: a loss is finite, a check passes.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from .shapes import Shape, Shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - the operation of `Tensor.item`
_OF_SHAPES = {torch.ops.aten.is_set_to.default, torch.ops.aten.is_same_size.default}
"""Operations that return no tensor and read no value. All others of the kind compare values."""
_ALIASING = {torch.ops.aten._unsafe_view.default}  # noqa: SLF001 - a view that is not said to be one
_FINDS_NOTHING = {torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default}
_SMALL = 2**20
"""Bytes of arguments and results up to which an operation on known values is computed."""


class Unknown(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Within this mode, no operation computes values of large or unknown tensors.

    Args:
        made: called with each storage that an operation allocates, the tensors that it was given,
            and its device: None if it was not named.
        ran: called with each operation that would compute, its arguments and its results.
    """

    def __init__(
        self,
        made: Callable[[torch.UntypedStorage, list[torch.Tensor], torch.device | None], None],
        ran: Callable[[Any, tuple[Any, ...], Any], None] = lambda *_: None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made, self._ran = made, ran
        self._shapes = Shapes()
        self._unknown: set[int] = set()  # of storages, by address of the C++ object

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """From now on, the values of `tensors` count as unknown."""
        for tensor in tensors:
            self._mark(tensor.untyped_storage())

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        if any(type(one) not in (torch.Tensor, torch.nn.Parameter) for one in given):
            with self:  # a subclass computes with ordinary tensors, which come here
                return func(*args, **kwargs)
        unknown = any(one.untyped_storage()._cdata in self._unknown for one in given)  # noqa: SLF001
        if func is _READ and unknown:
            self._ran(func, args, ())
            return torch.ones((), dtype=args[0].dtype).item()
        kind = _kind(func)
        if func is _READ or kind == "view":
            return func(*args, **kwargs)
        if kind == "tells":
            return True if unknown and func not in _OF_SHAPES else func(*args, **kwargs)
        if func in _FINDS_NOTHING:
            return None
        made = None if kind == "changes" else self._shapes.of(func, args, kwargs)
        if not unknown and _bytes(given, made) > _SMALL:
            unknown = True
        if not unknown:
            return self._noted(func(*args, **kwargs), given, kwargs.get("device"), known=True)
        changed = _changed(func, args, kwargs) if kind != "makes" else []
        self.forget(changed)
        result = _returned(func, args, kwargs) if kind == "changes" else tree_map(_empty, made)
        if kind != "changes":
            self._noted(result, given, kwargs.get("device"), known=False)
        self._ran(func, args, changed if result is None else result)
        return result

    def _noted(
        self,
        result: Any,
        given: list[torch.Tensor],
        device: torch.device | None,
        *,
        known: bool,
    ) -> Any:
        for one in tree_iter(result):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                self._made(storage, given, device)
                if not known:
                    self._mark(storage)
        return result

    def _mark(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata  # noqa: SLF001 - two Python objects may stand for one storage
        if address not in self._unknown:
            self._unknown.add(address)
            weakref.finalize(storage, self._unknown.discard, address).atexit = False


def _empty(value: Any) -> Any:
    return value.made("cpu") if isinstance(value, Shape) else value


def _bytes(given: Iterable[torch.Tensor], made: Any) -> int:
    shapes = [one for one in tree_iter(made) if isinstance(one, Shape)]
    sizes = (torch.Size(one.size).numel() * one.dtype.itemsize for one in shapes)
    return sum(one.numel() * one.element_size() for one in given) + sum(sizes)


@cache
def _kind(func: Any) -> str:
    """Return what an operation does: `view`, `tells`, `changes`, `makes`, or `both` of these."""
    if func.is_view or func in _ALIASING or torch.Tag.inplace_view in func.tags:
        return "view"
    schema = func._schema  # noqa: SLF001 - the public way to it does not exist
    if schema.returns and not any("Tensor" in str(one.type) for one in schema.returns):
        return "tells"
    if not any(one.alias_info and one.alias_info.is_write for one in schema.arguments):
        return "makes"
    fresh = any(one.alias_info is None for one in schema.returns)
    return "both" if fresh else "changes"


def _changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    named = _written(func)
    values = [*(args[place] for place, _ in named if place < len(args))]
    values += [kwargs[name] for _, name in named if name in kwargs]
    return [one for one in tree_iter(values) if isinstance(one, torch.Tensor)]


@cache
def _written(func: Any) -> list[tuple[int, str]]:
    return [
        (place, one.name)
        for place, one in enumerate(func._schema.arguments)  # noqa: SLF001
        if one.alias_info and one.alias_info.is_write
    ]


def _returned(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments that an operation changes and returns."""
    wanted = len(func._schema.returns)  # noqa: SLF001
    if not wanted:
        return None
    values = [args[place] for place, _ in _written(func) if place < len(args)]
    values += [kwargs[name] for _, name in _written(func) if name in kwargs]
    return values[0] if wanted == 1 else tuple(values[:wanted])
