"""What a provider is: one implementation of an op, and when it may be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .query import Query

Support = Literal[True] | str
"""Yes, or the reason why not."""

REFERENCE = "reference"
"""The name of every op's own provider; it supports everything."""


def _always(_: Query) -> Support:
    return True


def _no_bytes(_: Query) -> int:
    return 0


def _one_way(_: Query) -> Sequence[Mapping[str, Any]]:
    return ()


@attrs.frozen(kw_only=True)
class Provider:
    """One implementation of an op. Nothing of it may run, compile or be tuned at import."""

    op: str
    """The op's name, as its spec has it."""
    name: str
    """`"triton"`, `"torch"`, or a stranger's own; one of a name per op."""
    run: Callable[..., Any]
    """`run(*arguments)`, or `run(*arguments, **config)` with one of `configs`.

    Every argument of the schema is given by position. It writes only to what the op mutates, and
    its results share no memory with the arguments.
    """
    supports: Callable[[Query], Support] = _always
    """Returns True, or the reason why not in a few words."""
    priority: int = 0
    """The highest of those that support a call is taken where nothing has been measured."""
    version: str = "1"
    """Changes when what was measured holds no longer; has the compiler's version in it."""
    workspace_bytes: Callable[[Query], int] = _no_bytes
    """Device bytes it allocates beside the results."""
    configs: Callable[[Query], Sequence[Mapping[str, Any]]] = _one_way
    """Keyword arguments of `run` to choose from when tuning; the first is the default."""

    __repr__ = one_line
