"""A provider: one implementation of an op, and the calls that it supports."""

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


def _no_bytes(_: Query) -> int:
    return 0


def _one_way(_: Query) -> Sequence[Mapping[str, Any]]:
    return ()


@attrs.frozen(kw_only=True)
class Provider:
    """One implementation of an op. Importing it must not run, compile or tune anything."""

    op: str
    """The op's name, as in its spec."""
    name: str
    """`"triton"`, `"torch"`, or a name of your own; unique for the op."""
    run: Callable[..., Any]
    """`run(*arguments)`, or `run(*arguments, **config)` with one of `configs`.

    It is called with every argument of the schema by position. It may write only to arguments that
    the op mutates, and its results must not share memory with the arguments.
    """
    supports: Callable[[Query], Support] = _always
    """Returns True, or a short reason why the call is not supported."""
    priority: int = 0
    """Without timings, the supporting provider of highest priority is chosen."""
    version: str = "1"
    """The provider's version, which must change when old timings become invalid; it includes the
    compiler's version."""
    workspace_bytes: Callable[[Query], int] = _no_bytes
    """Returns the device bytes allocated in addition to the results."""
    configs: Callable[[Query], Sequence[Mapping[str, Any]]] = _one_way
    """Returns the candidate keyword arguments of `run` for tuning; the first is the default."""

    __repr__ = one_line
