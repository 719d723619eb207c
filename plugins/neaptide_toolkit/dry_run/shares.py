"""What part of an unknown mask is true, if all choices are equally frequent.

Experts choose rows by masks. These come from indices such as those of `topk`: whole numbers below
the size of a dimension. A comparison with one of these numbers, or a one-hot code of them, is true
in a known part of the elements.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from math import ceil, floor, prod
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_ATEN = torch.ops.aten


@attrs.frozen
class Places:
    """Whole numbers from 0 to below `count`, each as frequent as the others."""

    count: int


@attrs.frozen
class ChosenPart:
    """Values of which a part is true or above 0, and the others are 0.

    Attributes:
        share: the part of all elements.
        stride: of the dimension of classes, which are chosen among; 0 if there is none.
        classes: the size of this dimension.
        used: how many of the classes are ever chosen.
    """

    share: Fraction
    stride: int = 0
    classes: int = 1
    used: int = 1

    def dimension(self, view: Tensor) -> int | None:
        """Return the dimension of classes of a view; None if it has none."""
        sizes = [*zip(view.stride(), view.shape, strict=True)]
        wanted = (self.stride, self.classes)
        return sizes.index(wanted) if self.stride and wanted in sizes else None

    def of(self, view: Tensor) -> Fraction:
        """Return the part of the elements of a view. What shows one class shows one in use."""
        whole = view.numel() * view.element_size() >= view.untyped_storage().nbytes()
        return self.share if whole or self.dimension(view) is not None else self.of_one

    @property
    def of_one(self) -> Fraction:
        """Return the part of the elements of one class in use."""
        return min(Fraction(1), self.share * self.classes / self.used)


@attrs.frozen
class Knowledge:
    """What a dry run knows of tensors.

    Attributes:
        fact: returns `Places` or `ChosenPart` of an unknown tensor, or None if neither is known.
        is_unknown: returns whether the values of a tensor are unknown.
        value: returns the value of all elements; None if it is unknown or they differ.
    """

    fact: Callable[[Tensor], Any]
    is_unknown: Callable[[Tensor], bool]
    value: Callable[[Tensor], Any]

    def is_zero(self, tensor: Tensor) -> bool:
        """Return whether all elements are known to be 0."""
        if self.is_unknown(tensor):
            return bool(self.value(tensor) == 0)
        return not bool(tensor.any().item())


def facts_of(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any, known: Knowledge
) -> list[tuple[Tensor, Places | ChosenPart]]:
    """Return what is known of the choices in tensors that an operation makes or changes.

    Args:
        operation: of PyTorch's dispatcher.
        args: of the operation, before it changes them.
        kwargs: of the operation.
        made: what it returns: of an operation that changes its arguments, the first of these.
        known: of the arguments.
    """
    rule = _RULES.get(operation)
    if rule is None:
        return []
    found = rule(known, made, *args, **kwargs)
    return [] if found is None or found[1] is None else [found]


def _one_place(_: Knowledge, made: Any, given: Tensor, dim: int | None = None, *__: Any) -> Any:
    """`argmax`: without a dimension, the place is one among all elements."""
    return made, Places(given.numel() if dim is None else _size(given, dim))


def _beside_values(
    _: Knowledge, made: Any, given: Tensor, dim: int = -1, *__: Any, **___: Any
) -> Any:
    """`sort` and `max`: they return values, and places along a dimension."""
    return made[1], Places(_size(given, dim))


def _top(known: Knowledge, made: Any, given: Tensor, _: int, dim: int = -1, *__: Any) -> Any:
    return _beside_values(known, made, given, dim)


def _size(given: Tensor, dim: int) -> int:
    return max(given.shape[dim], 1) if given.ndim else 1


def _copied(known: Knowledge, made: Tensor, given: Tensor, *_: Any, **__: Any) -> Any:
    """A copy has the same dimensions, but maybe other strides."""
    fact = known.fact(given)
    dim = fact.dimension(given) if isinstance(fact, ChosenPart) else None
    if dim is not None:
        return made, attrs.evolve(fact, stride=made.stride(dim))
    return made, ChosenPart(fact.of(given)) if isinstance(fact, ChosenPart) else fact


def _indexed(known: Knowledge, made: Tensor, given: Tensor, places: list[Any]) -> Any:
    return _picked(known, made, given, [dim for dim, one in enumerate(places) if one is not None])


def _along(known: Knowledge, made: Tensor, given: Tensor, dim: int, *_: Any, **__: Any) -> Any:
    return _picked(known, made, given, [dim % max(given.ndim, 1)])


def _picked(known: Knowledge, made: Tensor, given: Tensor, dims: list[int]) -> Any:
    """What is picked along the dimension of classes is of classes in use."""
    fact = known.fact(given)
    if isinstance(fact, ChosenPart):
        fact = ChosenPart(fact.of_one if fact.dimension(given) in dims else fact.of(given))
    return made, fact


def _reduced(
    known: Knowledge, made: Tensor, given: Tensor, dims: Any = None, *_: Any, **__: Any
) -> Any:
    """`any` and `sum` are not 0 where one of many elements is chosen."""
    fact = known.fact(given)
    if not isinstance(fact, ChosenPart):
        return None
    whole = range(given.ndim) if dims is None or dims == [] else dims
    over = {one % given.ndim for one in ([whole] if isinstance(whole, int) else whole)}
    count, dim = prod(given.shape[one] for one in over), fact.dimension(given)
    if dim is None or dim in over:
        return made, ChosenPart(min(Fraction(1), count * fact.of(given)))
    return made, ChosenPart(min(Fraction(1), count * fact.of_one) * fact.used / fact.classes)


def _scattered(
    known: Knowledge, made: Tensor, given: Tensor, dim: int, places: Tensor, value: Any, *_: Any
) -> Any:
    """Zeros of which some are set: a one-hot code of the places."""
    sets = isinstance(value, torch.Tensor) or value
    if not sets or not known.is_zero(given) or not given.numel():
        return None
    if made is given and given.numel() * given.element_size() < given.untyped_storage().nbytes():
        return None
    classes, fact = given.shape[dim], known.fact(places)
    used = min(fact.count, classes) if isinstance(fact, Places) else classes
    share = min(Fraction(1), Fraction(places.numel(), given.numel()))
    return made, ChosenPart(share, made.stride(dim), classes, used)


def _inverted(known: Knowledge, made: Tensor, given: Tensor) -> Any:
    fact = known.fact(given)
    return (made, ChosenPart(1 - fact.of(given))) if isinstance(fact, ChosenPart) else None


def _compared(known: Knowledge, made: Tensor, given: Tensor, other: Any, *, name: str) -> Any:
    """Compare places with a number or with many numbers, or what is chosen with 0."""
    if isinstance(other, torch.Tensor):
        if known.is_unknown(other):
            return None
        if other.numel() != 1:
            return _compared_with_many(known.fact(given), made, other) if name == "eq" else None
        other = other.item()
    fact = known.fact(given)
    if isinstance(fact, Places):
        return made, ChosenPart(Fraction(_passing(name, other, fact.count), fact.count))
    if isinstance(fact, ChosenPart) and other == 0 and name in ("gt", "ne"):
        return _copied(known, made, given)
    return _inverted(known, made, given) if other == 0 and name == "eq" else None


def _passing(name: str, number: float, count: int) -> int:
    """Return how many of the places below `count` pass a comparison with `number`."""

    def below(end: int) -> int:
        return min(max(end, 0), count)

    less, most = below(ceil(number)), below(floor(number) + 1)
    return {
        "lt": less,
        "le": most,
        "gt": count - most,
        "ge": count - less,
        "eq": most - less,
        "ne": count - (most - less),
    }[name]


def _compared_with_many(fact: Any, made: Tensor, numbers: Tensor) -> Any:
    """Compare with the numbers of one dimension: a one-hot code, too."""
    longer = [dim for dim, size in enumerate(numbers.shape) if size > 1]
    if not isinstance(fact, Places) or len(longer) != 1:
        return None
    classes = numbers.numel()
    used = sum(_passing("eq", one, fact.count) for one in numbers.flatten().tolist())
    dim = longer[0] - numbers.ndim
    if not used or made.shape[dim] != classes:
        return None
    return made, ChosenPart(Fraction(used, classes * fact.count), made.stride(dim), classes, used)


_RULES: dict[Any, Callable[..., Any]] = {
    _ATEN.argmax.default: _one_place,
    _ATEN.argmin.default: _one_place,
    _ATEN.topk.default: _top,
    _ATEN.sort.default: _beside_values,
    _ATEN.sort.stable: _beside_values,
    _ATEN.max.dim: _beside_values,
    _ATEN.min.dim: _beside_values,
    _ATEN._to_copy.default: _copied,  # noqa: SLF001 - the operation of `Tensor.to`
    _ATEN.clone.default: _copied,
    _ATEN.index.Tensor: _indexed,
    _ATEN.index_select.default: _along,
    _ATEN.gather.default: _along,
    _ATEN.any.default: _reduced,
    _ATEN.any.dim: _reduced,
    _ATEN.any.dims: _reduced,
    _ATEN.sum.default: _reduced,
    _ATEN.sum.dim_IntList: _reduced,
    _ATEN.amax.default: _reduced,
    _ATEN.scatter.value: _scattered,
    _ATEN.scatter.src: _scattered,
    _ATEN.scatter_.value: _scattered,
    _ATEN.scatter_.src: _scattered,
    _ATEN.bitwise_not.default: _inverted,
    _ATEN.logical_not.default: _inverted,
    **{
        getattr(getattr(_ATEN, name), overload): partial(_compared, name=name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Scalar", "Tensor")
    },
}
"""Each takes what is known, what the operation made, and its arguments; it returns a tensor, and
what is known of it."""
