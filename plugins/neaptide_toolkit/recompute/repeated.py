"""Calls a function once for each part of the work. A dry run need not make all of the calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Repeat = Callable[[Callable[[int], Any], int], list[Any]]
"""Called as `repeated` is, for equal parts."""

_other: ContextVar[Repeat | None] = ContextVar("repeated", default=None)


@contextmanager
def repeated_by(repeat: Repeat) -> Iterator[None]:
    """Within this context, `repeated` returns what `repeat` returns for equal parts."""
    token = _other.set(repeat)
    try:
        yield
    finally:
        _other.reset(token)


def repeated(run: Callable[[int], Any], count: int, *, equal: bool) -> list[Any]:
    """Return `run(0)`, `run(1)`, up to `run(count - 1)`.

    Args:
        run: does one part of the work.
        count: how many parts there are.
        equal: whether all parts take the same operations on tensors of the same shapes.
    """
    other = _other.get()
    if equal and other is not None:
        return other(run, count)
    return [run(part) for part in range(count)]
