"""A provider is one implementation of an op. It states which calls it supports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .query import Query

Support = Literal[True] | str
"""True, or the reason why a call is not supported."""

REFERENCE = "reference"
"""The name of the provider that every op has and that supports every call."""


def _always(_: Query) -> Support:
    return True


def _none(_: Query) -> int:
    return 0


def _one_way(_: Query) -> Sequence[Mapping[str, Any]]:
    return ()


@attrs.frozen(kw_only=True)
class Provider:
    """One implementation of an op. Importing its module must not run, compile or tune anything."""

    op: str
    """The name of the op. The op's spec has the same name."""
    name: str
    """`"triton"`, `"torch"` or any other name. No other provider of the op may have this name."""
    run: Callable[..., Any]
    """`run(*arguments)`, or `run(*arguments, **config)` with one of `configs`.

    The registry passes every argument of the schema by position. `run` may write only to arguments
    that the op mutates. The results must not share memory with the arguments.
    """
    supports: Callable[[Query], Support] = _always
    """Returns True, or a short reason why the call is not supported."""
    priority: int = 0
    """If a call has no timings, the provider of highest priority that supports the call runs."""
    fewest: Callable[[Query], int] = _none
    """Returns about how many elements the largest tensor must have, for a call without timings.
    Define it if the first call loads or compiles something for seconds."""
    build: Callable[[Query], None] | None = None
    """Compiles what a call needs, in seconds, and keeps it on disk. `neaptide kernels tune` calls
    it; until then `supports` refuses the call."""
    version: str = "1"
    """The provider's version, including the compiler's version. It must change when old timings
    become invalid."""
    plain: bool = False
    """True if `run` is plain PyTorch. Then a plan runs it without values and counts its memory."""
    workspace_bytes: Callable[[Query], int] = _none
    """Returns the number of device bytes that a call allocates in addition to its results. A plan
    asks providers that are not `plain`."""
    configs: Callable[[Query], Sequence[Mapping[str, Any]]] = _one_way
    """Returns the sets of keyword arguments of `run` that tuning tries; the first set is used by
    default."""

    __repr__ = one_line
