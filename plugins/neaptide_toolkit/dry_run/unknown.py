"""A mode in which operations make tensors without computing their values.

The tensors are ordinary CPU tensors. Their memory is reserved, but never written, so that it takes
no RAM. Views, storages, addresses and autograd are PyTorch's own. Small tensors whose values are
known, such as counters and masks, are computed. All unknown values are finite. Where code reads one
of them, it gets 1 or True: a check passes. What it read, and where, is noted.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from neaptide_toolkit.tensors import nested_tensors

from .assumptions import Assumptions, refuse_layouts
from .gradients import Backward
from .operations import changed_by, has_size_by_value, is_composed, kind_of, returned_by
from .shapes import Shape, Shapes
from .shares import ChosenPart, Knowledge, Places, facts_of
from .undispatched.kernels import temporary
from .uniform import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - the operation of `Tensor.item`
_TO_COPY = torch.ops.aten._to_copy.default  # noqa: SLF001 - the operation of `Tensor.to`
_OF_SHAPES = {torch.ops.aten.is_set_to.default, torch.ops.aten.is_same_size.default}
"""Operations that return no tensor and read no value. All others of the kind compare values."""
_FAKE = torch._C._TorchDispatchModeKey.FAKE  # noqa: SLF001 - as torch's own modes are told apart
_OURS = object()
_FINDS_NOTHING = {torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default}
_SMALL, _SMALL_IF_INTEGER = 2**20, 2**25
"""Bytes of arguments and results up to which an operation on known values is computed. Tokens and
masks decide about shapes more often than other values do."""
_INTEGER = (torch.bool, torch.int32, torch.int64)


class Unknown(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Within this mode, no operation computes values of large or unknown tensors.

    Args:
        made: called with each storage that an operation allocates, the tensors that it was given,
            and its device: None if it was not named.
        ran: called with each operation that would compute, its positional arguments, the tensors in
            them, and its results.
        inside: returns the bytes that an operation takes while it runs, from its arguments and its
            results.
        plain: returns a call that does in plain PyTorch what an operation does; None if there is
            none. It runs in this mode in the operation's place.

    Attributes:
        assumptions: what is taken for granted of unknown values.
    """

    def __init__(
        self,
        made: Callable[[torch.UntypedStorage, list[torch.Tensor], torch.device | None], None],
        ran: Callable[[Any, tuple[Any, ...], list[torch.Tensor], Any], None] = lambda *_: None,
        inside: Callable[[Any, tuple[Any, ...], Any], int] = temporary,
        plain: Callable[[Any, tuple[Any, ...]], Callable[[], Any] | None] = lambda *_: None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made, self._ran, self._inside, self._plain = made, ran, inside, plain
        self.assumptions = Assumptions()
        self._shapes = Shapes(self._count, self.assumptions.note)
        self._backward = Backward()
        self._is_plain = False
        # By address of the storage's C++ object: the value of all elements, or what is known of the
        # choices in them; None if nothing is.
        self._unknown: dict[int, Any] = {}
        self._knowledge = Knowledge(self._fact, self.is_unknown, self._value)

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
        given = nested_tensors((args, kwargs))
        if (result := _elsewhere(func, args, kwargs, given)) is not _OURS:
            return result
        refuse_layouts(given, func)
        if (call := self._instead(func, args, kwargs)) is not None:
            with self:
                return call()
        unknown = any(map(self.is_unknown, given))
        func = self._backward.instead_of(func, args, kwargs)
        kind = kind_of(func)
        if func is _READ:
            self._ran(func, args, given, ())
            return self.read(args[0]) if unknown else func(*args, **kwargs)
        if kind == "view" or _is_on_meta(given, kwargs):
            return func(*args, **kwargs)
        if kind == "tells":
            self._take_inside(func, args, None, given)
            return True if unknown and func not in _OF_SHAPES else func(*args, **kwargs)
        if func in _FINDS_NOTHING:
            return None
        if (
            unknown
            or not _is_small(given, ())
            or (self._is_plain and any(one.ndim for one in given))
        ):
            return self._without_values(func, args, kwargs, given)
        if not has_size_by_value(func, args):
            made = None if kind == "changes" else self._shapes.of(func, args, kwargs)
            if not _is_small(given, made):
                return self._without_values(func, args, kwargs, given)
        return self._computed(func, args, kwargs, given)

    def _computed(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[torch.Tensor]
    ) -> Any:
        result = self._noted(func(*args, **kwargs), given, _named(func, args, kwargs))
        self._take_inside(func, args, result, given)
        self._backward.made(func, result)
        if any(one.ndim for one in given):  # counters are no work
            self._ran(func, args, nested_tensors(args) if kwargs else given, result)
        return result

    def _instead(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any] | None:
        """Return what runs in this mode in the place of an operation, if it is made of others."""
        if is_composed(func):
            return partial(func.decompose, *args, **kwargs)
        call = self._plain(func, args)
        return None if call is None else partial(self._without_computing, call)

    def _without_computing(self, call: Callable[[], Any]) -> Any:
        """Return `call()`, in which only numbers are computed: other values decide nothing."""
        before, self._is_plain = self._is_plain, True
        try:
            return call()
        finally:
            self._is_plain = before

    def _without_values(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[torch.Tensor]
    ) -> Any:
        kind = kind_of(func)
        read = nested_tensors(args) if kwargs else given
        changed = changed_by(func, args, kwargs) if kind != "makes" else []
        facts = facts_of(func, args, kwargs, changed[0], self._knowledge) if changed else []
        self.forget(changed)
        if kind == "changes":
            self._tell(facts)
            result = returned_by(func, args, kwargs)
            self._ran(func, args, read, changed if result is None else result)
            return result
        made = self._shapes.of(func, args, kwargs)
        value = None
        if kind == "makes" and isinstance(made, Shape):
            value = value_of(func, args, kwargs, given, self._value, self.assumptions.read)
        result = self._noted(_empty(made), given, _named(func, args, kwargs))
        if value is not None and _is_small((), made):
            result.fill_(value)
        else:
            for one in nested_tensors(result):
                self._mark(one.untyped_storage(), value)
            if value is None and kind == "makes":
                self._tell(facts_of(func, args, kwargs, result, self._knowledge))
        self._backward.made(func, result)
        self._take_inside(func, args, result, given)
        self._ran(func, args, read, result)
        return result

    def alike(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape of `tensor`, without values. Nobody is told of it."""
        with _disable_current_modes():
            made = Shape.of(tensor).made()
        self.forget([made])
        return made.requires_grad_(tensor.requires_grad)

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        """Return whether the values of a tensor are unknown."""
        return tensor.untyped_storage()._cdata in self._unknown  # noqa: SLF001 - the identity

    def read(self, tensor: torch.Tensor) -> Any:
        """Return the number that code gets which reads an unknown tensor with one element.

        Raises:
            UnplannableError: the same place reads again and again.
        """
        value = self._value(tensor)
        if value is None:
            value = torch.ones((), dtype=tensor.dtype).item()
            self.assumptions.read(value)
        return torch.full((), value, dtype=tensor.dtype).item()

    def _value(self, tensor: torch.Tensor) -> Any:
        """Return the value of all elements; None if they are unknown or differ."""
        storage = tensor.untyped_storage()._cdata  # noqa: SLF001 - as above
        if storage in self._unknown:
            found = self._unknown[storage]
            return None if isinstance(found, Places | ChosenPart) else found
        return tensor.item() if tensor.numel() == 1 else None

    def _count(self, tensor: torch.Tensor) -> int:
        """Return how many elements are not 0, or how many can be."""
        if not self.is_unknown(tensor):
            return int(tensor.count_nonzero())
        value, fact = self._value(tensor), self._fact(tensor)
        if isinstance(fact, ChosenPart) and tensor.numel():
            share = fact.of(tensor)
            self.assumptions.note(
                f"a mask chooses {share} of its elements: all choices are equally frequent"
            )
            return max(1, round(tensor.numel() * share))
        if value is None:
            self.assumptions.note(f"a mask chooses all of its {tensor.numel()} elements")
        return tensor.numel() if value is None or value else 0

    def _fact(self, tensor: torch.Tensor) -> Any:
        found = self._unknown.get(tensor.untyped_storage()._cdata)  # noqa: SLF001 - as above
        return found if isinstance(found, Places | ChosenPart) else None

    def _tell(self, facts: Iterable[tuple[torch.Tensor, Any]]) -> None:
        for tensor, fact in facts:
            self._mark(tensor.untyped_storage(), fact)

    def _noted(self, result: Any, given: list[torch.Tensor], device: torch.device | None) -> Any:
        for one in nested_tensors(result):
            refuse_layouts([one], "an operation")
            self._made(one.untyped_storage(), given, device)
        return result

    def _take_inside(
        self, func: Any, args: tuple[Any, ...], result: Any, given: list[torch.Tensor]
    ) -> None:
        if nbytes := self._inside(func, args, result):
            self._noted(Shape((nbytes,), (1,), torch.uint8).made(), given, None)

    def _mark(self, storage: torch.UntypedStorage, value: Any = None) -> None:
        address = storage._cdata  # noqa: SLF001 - two Python objects may stand for one storage
        if address not in self._unknown:
            weakref.finalize(storage, self._unknown.pop, address, None).atexit = False
        self._unknown[address] = value


def _elsewhere(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Iterable[torch.Tensor]
) -> Any:
    """Return what an operation returns that is none of the run's; `_OURS` if it is one."""
    if torch._C._get_dispatch_mode(_FAKE) is not None:  # noqa: SLF001 - nothing else tells
        return func(*args, **kwargs)  # a DTensor asks for shapes, in a mode below this one
    if any(type(one) not in (torch.Tensor, torch.nn.Parameter) for one in given):
        return NotImplemented  # the subclass computes with ordinary tensors, which come here
    return _OURS


def _is_on_meta(given: Iterable[torch.Tensor], kwargs: dict[str, Any]) -> bool:
    """Return whether the results of an operation are on meta: no values, no memory, no time."""
    device = kwargs.get("device")
    if device is not None:
        return bool(device.type == "meta")
    sources = [one for one in given if one.ndim]
    return bool(sources) and all(one.is_meta for one in sources)


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Return the device that an operation names; None if the name `cpu` may mean either memory.

    A tensor of the accelerator says `cpu`, too. But a copy that changes no dtype leaves its device.
    """
    device: torch.device | None = kwargs.get("device")
    if device is None or device.index is not None:
        return device
    moves = func is _TO_COPY and kwargs.get("dtype") in (None, args[0].dtype)
    return device if moves else None


def _empty(made: Any) -> Any:
    """Return `made` with a tensor in the place of each shape. Most operations make one."""
    if isinstance(made, Shape):
        return made.made()
    return tree_map(lambda one: one.made() if isinstance(one, Shape) else one, made)


def _is_small(given: Iterable[torch.Tensor], made: Any) -> bool:
    """Return whether an operation is so small that it is computed if its values are known."""
    whole = [Shape.of(one) for one in given]
    whole += [one for one in tree_iter(made) if isinstance(one, Shape)]
    integer = all(one.dtype in _INTEGER for one in whole)
    return sum(one.nbytes for one in whole) <= (_SMALL_IF_INTEGER if integer else _SMALL)
