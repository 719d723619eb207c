"""An op's specification: its reference, which defines its results, and the facts torch needs."""

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

NAMESPACE = "neaptide"
_NAME = re.compile(r"([a-z][a-z0-9_]*::)?[a-z][a-z0-9_]*")
# torch's functionalization passes every argument by name, and has parameters of these names.
_TAKEN = frozenset({"mode", "self"})
_EMPTY = Parameter.empty

A = TypeVar("A", bound=tuple[Any, ...])
R = TypeVar("R")


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


def takes(
    arguments: Callable[..., A],
) -> Callable[[Callable[Concatenate[A, ...], R]], Callable[..., R]]:
    """Return a decorator that lets a function of a NamedTuple take its fields by position.

    The NamedTuple lists an op's arguments once, for its reference, `check` and each provider's
    `run`. A decorated reference gives the op's schema the NamedTuple's fields, annotations and
    defaults.
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
    """Sample arguments of an op: small ones for checks, large ones for timings."""

    name: str
    arguments: tuple[Any, ...]
    """Arguments in the order of the schema, with new tensors that the op may overwrite."""

    __repr__ = one_line


@attrs.frozen(kw_only=True, eq=False)
class OpSpec:
    """One op: its definition, and the criteria for its providers."""

    name: str = attrs.field()
    """`"quantize_int8"`, in the namespace `neaptide`, or `"yours::name"`."""
    summary: str
    """One line for `neaptide kernels list`."""
    reference: Callable[..., Any]
    """Plain torch on any device, also in float64; its annotations define the schema."""
    fake: Callable[..., Any]
    """Takes the same arguments; returns empty tensors of the results' shapes and dtypes."""
    samples: Callable[[torch.device], Iterable[Sample]]
    """Yields small arguments for `check_provider` and for a provider's first trial."""
    large: Callable[[torch.device], Iterable[Sample]]
    """Yields arguments of sizes common in training, for `kernels bench` and `tune`."""
    mutates: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Arguments written in place."""
    check: Callable[..., None] | None = None
    """Raises ValueError for arguments that do not match, before any provider runs."""
    setup_context: Callable[..., None] | None = None
    """`setup_context(ctx, inputs, output)`, see `torch.library.register_autograd`."""
    backward: Callable[..., Any] | None = None
    """`backward(ctx, *gradients)`; None if the op has no derivative."""
    flops: Callable[..., int] | None = None
    """`flops(*shapes, out_shape)` for `torch.utils.flop_counter`."""
    traffic: Callable[..., int] | None = None
    """`traffic(*arguments)`: the least bytes to read and write, for a benchmark's bandwidth."""
    tolerances: Mapping[torch.dtype, float] = attrs.field(factory=dict)
    """Largest relative error `|result - reference| / |reference|` (norms), by the result's dtype.

    For these dtypes the reference is computed in float64. Results of any other dtype must be
    bitwise equal to the reference in the arguments' own dtypes.
    """
    agree: Callable[[Any, Any], Iterable[str]] | None = None
    """`agree(expected, got)` yields faults that norms cannot show. Both arguments are lists as
    returned by `agreement.outcome`, with checked dtypes and shapes."""
    timed_by: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Numeric arguments that affect the speed, such as a block size.

    Timings are stored by dtypes, sizes, flags and these arguments.
    """
    deterministic: bool = True
    """Whether the reference returns the same bits each time."""

    __repr__ = one_line

    @name.validator
    def _check_name(self, _: Any, value: str) -> None:
        if not _NAME.fullmatch(value):
            msg = f"an op's name is lower_case or namespace::lower_case (got {value!r})"
            raise ValueError(msg)

    @property
    def qualified(self) -> str:
        """The name with its namespace, as in `torch.ops`."""
        return self.name if "::" in self.name else f"{NAMESPACE}::{self.name}"

    def schema(self) -> str:
        """Return the schema, derived from the reference's annotations.

        ValueError if torch.compile cannot handle an argument's name.
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
        """Return all arguments by position: the given arguments, then the reference's defaults."""
        left_out = _parameters(self.reference)[len(arguments) :]
        missing = [name for name, default in left_out if default is _EMPTY]
        if missing:
            msg = f"{self.qualified} needs {', '.join(missing)}"
            raise TypeError(msg)
        # The schema cannot be used here: it stores a default dtype as a number.
        return [*arguments, *(default for _, default in left_out)]


@cache
def _parameters(reference: Callable[..., Any]) -> tuple[tuple[str, Any], ...]:
    parameters = signature(reference).parameters
    return tuple((name, parameter.default) for name, parameter in parameters.items())
