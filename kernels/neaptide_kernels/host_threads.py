"""Run functions compiled by Numba on a CPU, on all threads that torch uses.

A provider of an op has the compiled functions in a file `host.py`, which is imported at first use.
Such a function updates its arguments in place. Its last two arguments are a range of units, such as
blocks of elements.

All tensors of a list are updated in one go: it takes time to wake a thread, and more while torch's
own threads still wait for work, busily. So the threads take small pieces until none is left, and a
thread that wakes late, or never, holds up nobody.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .registry import Query, Support

FEWEST = 1 << 17
"""Elements that a thread is worth."""
_PIECE = 1 << 19
"""Elements that a thread takes at a time, at most: 100 us of work or more."""


def supports(query: Query) -> Support:
    """Return True if the call is on a CPU and Numba can compile, otherwise a reason."""
    if query.device != "cpu":
        return "it runs on a CPU only"
    if find_spec("numba") is None:
        return "Numba is not installed: pip install numba"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}:
        return "NUMBA_DISABLE_JIT is set: Numba compiles nothing"
    return True


def array(tensor: torch.Tensor) -> Any:
    """Return the memory of a tensor as an array, that of bfloat16 as uint16."""
    plain = tensor.detach()
    return (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()


class HostCall(NamedTuple):
    """A call of a compiled function for all units of its arguments."""

    name: str
    units: int
    arguments: tuple[Any, ...]


def run(module: str, size: int, calls: Sequence[HostCall]) -> None:
    """Run compiled functions of a module, whose units have some `size` elements each.

    The threads share the units of all calls. Calls whose first arguments are the same memory, as of
    a weight that is listed twice, run one after the other.
    """
    written = [call.arguments[0].ctypes.data for call in calls if call.units]
    if len(set(written)) < len(written):
        for call in calls:
            run(module, size, [call])
        return
    elements = sum(call.units for call in calls) * size
    threads = min(torch.get_num_threads(), max(1, elements // FEWEST))
    units = min(_PIECE, elements // (2 * threads)) // size
    left = deque(_pieces(module, max(1, units), calls))
    others = [_pool(os.getpid()).submit(_work, left) for _ in range(1, threads)]
    _work(left)
    for other in others:
        if not other.cancel():
            other.result()


def _pieces(module: str, units: int, calls: Sequence[HostCall]) -> Iterator[Callable[[], None]]:
    """Yield calls of the compiled functions for `units` units at most, which together are all."""
    for call in calls:
        function = _ready_for(module, call)
        for first in range(0, call.units, units):
            yield partial(function, *call.arguments, first, min(first + units, call.units))


def _work(left: deque[Callable[[], None]]) -> None:
    """Run pieces until none is left; several threads take from `left`."""
    while True:
        try:
            piece = left.popleft()
        except IndexError:
            return
        piece()


def _ready_for(module: str, call: HostCall) -> Any:
    """Return the function of a call, compiled for its arguments."""
    function = _function(module, call.name)
    kinds = tuple(map(_kind, call.arguments))
    if (function, kinds) not in _ready:
        _prepare(function, call.name, (*call.arguments, 0, 0))
        _ready.add((function, kinds))
    return function


_ready: set[tuple[Any, tuple[Any, ...]]] = set()
"""The functions that are compiled in this process, each with the kinds of its arguments."""


def _kind(argument: Any) -> Any:
    """Return what Numba compiles a function for, in short."""
    if isinstance(argument, np.ndarray):
        return argument.dtype.char, argument.flags.c_contiguous
    return type(argument)


@cache
def _pool(_process: int) -> ThreadPoolExecutor:
    """Return the threads of a process; a process that was forked has none of its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), "neaptide-host")


@cache
def _function(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _prepare(function: Any, name: str, arguments: tuple[Any, ...]) -> None:
    """Compile a function for arguments, or load it; say so if it is compiled: it takes seconds."""
    from .compiling import is_kept, types_of  # noqa: PLC0415 - it needs Numba

    signature = types_of(arguments)
    if not is_kept(function, signature):
        often = (
            "in each process: no folder for its cache can be written"
            if function.stats.cache_path is None
            else "once"
        )
        logging.getLogger("neaptide").warning(
            "%s is compiled for this CPU, %s: it takes some seconds", name, often
        )
    function.compile(signature)
