"""The specification of an op: the reference that defines its results, and facts for torch."""

from __future__ import annotations

import re
from functools import cache, wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar, get_type_hints

import attrs
import torch

from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .query import Query

NAMESPACE = "neaptide"
_NAME = re.compile(r"([a-z][a-z0-9_]*::)?[a-z][a-z0-9_]*")
# torch's functionalization passes every argument by name to a function that already has parameters
# with these names.
_TAKEN = frozenset({"mode", "self"})
_EMPTY = Parameter.empty

A = TypeVar("A", bound=tuple[Any, ...])
R = TypeVar("R")


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


def takes(
    arguments: Callable[..., A],
) -> Callable[[Callable[Concatenate[A, ...], R]], Callable[..., R]]:
    """Return a decorator for a function of one NamedTuple.

    The decorated function takes the fields of the NamedTuple by position. So an op's arguments are
    listed only once, for the reference, `check` and each provider's `run`. The op's schema has the
    names, annotations and defaults of the fields.
    """
    hints = get_type_hints(arguments)
    fields = [
        parameter.replace(annotation=hints[name])
        for name, parameter in signature(arguments).parameters.items()
    ]

    def made(function: Callable[Concatenate[A, ...], R]) -> Callable[..., R]:
        @wraps(function)
        def by_position(*values: Any, **config: Any) -> R:
            return function(arguments(*values), **config)

        own = signature(function, eval_str=True)
        _, *others = own.parameters.values()
        by_position.__signature__ = own.replace(parameters=[*fields, *others])  # type: ignore[attr-defined]  # read by inspect
        return by_position

    return made


@attrs.frozen(kw_only=True)
class Sample:
    """Sample arguments of an op: small tensors for checks, large tensors for timings."""

    name: str
    arguments: tuple[Any, ...]
    """Arguments in the order of the schema. The tensors are new, so the op may overwrite them."""

    __repr__ = one_line


@attrs.frozen(kw_only=True, eq=False)
class OpSpec:
    """The definition of one op, and the requirements on its providers."""

    name: str = attrs.field()
    """`"quantize_int8"`, in the namespace `neaptide`, or `"yours::name"`."""
    summary: str
    """The op's line in `neaptide kernels list`."""
    reference: Callable[..., Any]
    """A function in plain torch for any device, also for float64; its annotations define the
    schema."""
    fake: Callable[..., Any]
    """Takes the reference's arguments; returns empty tensors with the shapes and dtypes of the
    results."""
    samples: Callable[[torch.device], Iterable[Sample]]
    """Yields small arguments for `check_provider` and for a provider's first trial."""
    large: Callable[[torch.device], Iterable[Sample]]
    """Yields arguments of sizes common in training, for `kernels bench` and `tune`."""
    mutates: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Names of the arguments that the op writes to."""
    check: Callable[..., None] | None = None
    """Called before a provider runs; raises ValueError if the arguments do not match."""
    setup_context: Callable[..., None] | None = None
    """`setup_context(ctx, inputs, output)`, see `torch.library.register_autograd`."""
    backward: Callable[..., Any] | None = None
    """`backward(ctx, *gradients)`; None if the op has no derivative."""
    flops: Callable[..., int] | None = None
    """`flops(*shapes, out_shape)` for `torch.utils.flop_counter`."""
    least_flops: Callable[..., int] | None = None
    """Like `flops`, without products that a provider may skip, such as those of scores that a mask
    hides. None means `flops`. `neaptide kernels roof` counts them."""
    traffic: Callable[..., int] | None = None
    """`traffic(*arguments)` returns the least number of bytes that a call must read and write.
    Benchmarks compute the bandwidth from this number."""
    operations: Callable[[Query], int] | None = None
    """`operations(query)` returns about how many arithmetic operations a call needs, without those
    of `flops`. `neaptide kernels roof` compares them with the bytes of `traffic`."""
    tolerances: Mapping[torch.dtype, float] = attrs.field(factory=dict)
    """Largest permitted relative error `|result - reference| / |reference|` (of norms), by dtype.

    If any tolerance is given, the reference is computed with the arguments in float64. A result
    whose dtype has no tolerance must be equal to the reference's result, converted to this dtype.
    """
    agree: Callable[[Any, Any], Iterable[str]] | None = None
    """`agree(expected, got)` yields faults; it replaces the comparison by `tolerances`. Both
    arguments are lists from `agreement.outcome`. Their dtypes and shapes are already checked."""
    timed_by: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Names of numeric arguments that affect the speed, such as a block size.

    Timings are stored by dtypes, sizes, flags and the values of these arguments.
    """
    deterministic: bool = True
    """True if the reference returns the same bits at each call with the same arguments."""

    __repr__ = one_line

    @name.validator
    def _check_name(self, _: Any, value: str) -> None:
        if not _NAME.fullmatch(value):
            msg = f"an op's name is lower_case or namespace::lower_case (got {value!r})"
            raise ValueError(msg)

    @property
    def qualified(self) -> str:
        """The op's name with the namespace. `torch.ops` uses the same name."""
        return self.name if "::" in self.name else f"{NAMESPACE}::{self.name}"

    def schema(self) -> str:
        """Return the schema, derived from the reference's annotations.

        Raises ValueError if torch.compile cannot handle an argument's name.
        """
        taken = _TAKEN.intersection(self.names)
        if taken:
            name = min(taken)
            msg = f"op {self.name}: torch.compile reserves the name {name!r}; rename the argument"
            raise ValueError(msg)
        schema: str = torch.library.infer_schema(self.reference, mutates_args=self.mutates)
        return schema

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        return tuple(name for name, _ in _parameters(self.reference))

    def complete(self, arguments: Sequence[Any]) -> list[Any]:
        """Return all arguments by position; a missing argument gets the reference's default."""
        left_out = _parameters(self.reference)[len(arguments) :]
        missing = [name for name, default in left_out if default is _EMPTY]
        if missing:
            msg = f"{self.qualified} needs {', '.join(missing)}"
            raise TypeError(msg)
        # The defaults are not read from the schema, because it stores a dtype as a number.
        return [*arguments, *(default for _, default in left_out)]


@cache
def _parameters(reference: Callable[..., Any]) -> tuple[tuple[str, Any], ...]:
    parameters = signature(reference).parameters
    return tuple((name, parameter.default) for name, parameter in parameters.items())
