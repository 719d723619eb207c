"""What an op is: its reference, which alone says what it computes, and what torch must know."""

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
# torch's functionalization passes every argument by its name to a function with these of its own.
_TAKEN = frozenset({"mode", "self"})
_EMPTY = Parameter.empty

A = TypeVar("A", bound=tuple[Any, ...])
R = TypeVar("R")


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


def takes(
    arguments: Callable[..., A],
) -> Callable[[Callable[Concatenate[A, ...], R]], Callable[..., R]]:
    """Return what makes a function of an op's arguments as a NamedTuple take them by position.

    So the reference, `check` and each provider's `run` need not list them again. A reference made
    so has the NamedTuple's fields, annotations and defaults for the op's schema.
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
    """Arguments to try an op on: small ones for checks, large ones for timings."""

    name: str
    arguments: tuple[Any, ...]
    """In the order of the schema, fresh tensors that the op may write to."""

    __repr__ = one_line


@attrs.frozen(kw_only=True, eq=False)
class OpSpec:
    """One op: what it computes, and how providers of it are judged."""

    name: str = attrs.field()
    """`"quantize_int8"`, in the namespace `neaptide`, or `"yours::name"`."""
    summary: str
    """One line for `neaptide kernels list`."""
    reference: Callable[..., Any]
    """Plain torch on any device, float64 included; its annotations give the schema."""
    fake: Callable[..., Any]
    """Returns empty tensors of the results' shapes and dtypes for the same arguments."""
    samples: Callable[[torch.device], Iterable[Sample]]
    """Yields small arguments, by which `check_provider` judges and a first launch is tried."""
    large: Callable[[torch.device], Iterable[Sample]]
    """Yields arguments of the sizes that training has, for `kernels bench` and `tune`."""
    mutates: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Arguments written in place."""
    check: Callable[..., None] | None = None
    """Raises ValueError for arguments that do not go together, before any provider runs."""
    setup_context: Callable[..., None] | None = None
    """`setup_context(ctx, inputs, output)`, as `torch.library.register_autograd` takes it."""
    backward: Callable[..., Any] | None = None
    """`backward(ctx, *gradients)`; without one the op has no derivative."""
    flops: Callable[..., int] | None = None
    """`flops(*shapes, out_shape)` for `torch.utils.flop_counter`."""
    traffic: Callable[..., int] | None = None
    """`traffic(*arguments)`: bytes it must at least read and write, for bandwidth in a bench."""
    tolerances: Mapping[torch.dtype, float] = attrs.field(factory=dict)
    """By dtype of a result: `|result - reference| / |reference|` (norms) that is still right.

    The reference is computed in float64 then. A dtype that is not there must agree to the bit with
    the reference at the arguments' own dtypes.
    """
    agree: Callable[[Any, Any], Iterable[str]] | None = None
    """`agree(expected, got)` yields what is wrong, where norms cannot tell; over tensors as
    `agreement.outcome` lists them, whose dtypes and shapes are right."""
    timed_by: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Numbers among the arguments that change how fast it is, such as a block size.

    Timings are kept by dtypes, sizes, flags and these.
    """
    deterministic: bool = True
    """The reference gives the same bits each time."""

    __repr__ = one_line

    @name.validator
    def _check_name(self, _: Any, value: str) -> None:
        if not _NAME.fullmatch(value):
            msg = f"an op's name is lower_case or namespace::lower_case (got {value!r})"
            raise ValueError(msg)

    @property
    def qualified(self) -> str:
        """The name with its namespace, as `torch.ops` has it."""
        return self.name if "::" in self.name else f"{NAMESPACE}::{self.name}"

    def schema(self) -> str:
        """Return the schema that the reference's annotations give.

        ValueError where torch.compile would trip on an argument's name.
        """
        taken = _TAKEN.intersection(self.names)
        if taken:
            name = min(taken)
            msg = f"op {self.name}: torch.compile takes the name {name!r} for itself; rename it"
            raise ValueError(msg)
        schema: str = torch.library.infer_schema(self.reference, mutates_args=self.mutates)
        return schema

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments, in order."""
        return tuple(name for name, _ in _parameters(self.reference))

    def complete(self, arguments: Sequence[Any]) -> list[Any]:
        """Return all arguments by position: those given, then the reference's defaults."""
        left_out = _parameters(self.reference)[len(arguments) :]
        missing = [name for name, default in left_out if default is _EMPTY]
        if missing:
            msg = f"{self.qualified} needs {', '.join(missing)}"
            raise TypeError(msg)
        # Not the schema's: it holds a default dtype as a number.
        return [*arguments, *(default for _, default in left_out)]


@cache
def _parameters(reference: Callable[..., Any]) -> tuple[tuple[str, Any], ...]:
    parameters = signature(reference).parameters
    return tuple((name, parameter.default) for name, parameter in parameters.items())
