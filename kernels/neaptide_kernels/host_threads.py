"""Run functions compiled by Numba on a CPU, on all threads that torch uses.

A provider of an op has the compiled functions in a file `host.py`, which is imported at first use.
Such a function updates its arguments in place. Its last two arguments are a range of units, such as
blocks of elements.

All tensors of a list are updated in one go: it takes time to wake a thread, and more while torch's
own threads still wait for work, busily.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .registry import Query, Support

FEWEST = 1 << 17
"""Elements that a thread is worth."""


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
    functions = [_ready_for(module, call) for call in calls]
    units = sum(call.units for call in calls)
    threads = min(torch.get_num_threads(), max(1, units * size // FEWEST))

    def share(part: int) -> None:
        begin, end, before = units * part // threads, units * (part + 1) // threads, 0
        for function, call in zip(functions, calls, strict=True):
            first, last = max(0, begin - before), min(call.units, end - before)
            if first < last:
                function(*call.arguments, first, last)
            before += call.units

    others = [_pool(os.getpid()).submit(share, part) for part in range(1, threads)]
    share(0)
    for other in others:
        other.result()


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
