"""Run the compiled steps of `host` on all threads that torch uses."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from neaptide_kernels.parts import parts_by, slices

from . import Stream, blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neaptide_kernels.registry import Query, Support

_FEWEST = 512
"""Blocks that a thread is worth."""
_MASK = 0xFFFFFFFF


def supports(query: Query) -> Support:
    """Return True if the call is on a CPU and Numba is installed, otherwise a reason."""
    if query.device != "cpu":
        return "it runs on a CPU only"
    if find_spec("numba") is None:
        return "Numba is not installed: pip install numba"
    return True


def step(by_pieces: Callable[..., None], name: str, *arguments: Any) -> None:
    """Run an op with the function `name` of `host`.

    Args:
        by_pieces: see `CodedOp.by_pieces`.
        name: the name of the op and of the function.
        arguments: those of the op.
    """

    def update(*given: Any) -> tuple[torch.Tensor, ...]:
        place = next(at for at, one in enumerate(given) if isinstance(one, Stream))
        tensors, (stream, start, *factors) = given[:place], given[place:]
        keys = (np.uint32(int(one) & _MASK) for one in (stream.first, stream.second, stream.turned))
        numbers = (np.float32(float(one)) for one in factors)
        _run(name, *map(_array, tensors), *keys, int(start), *numbers)
        return tensors[:-1]

    with parts_by(_whole):
        by_pieces(*arguments, update=update)


def _whole(tensor: torch.Tensor, *_: int) -> Iterator[slice]:
    return slices(tensor.numel(), max(1, tensor.numel()))


def _array(tensor: torch.Tensor) -> Any:
    """Return the memory of a tensor as an array, that of bfloat16 as uint16."""
    plain = tensor.detach()
    return (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()


def _run(name: str, *arguments: Any) -> None:
    function, blocks = _function(name), blocks_of(len(arguments[0]))
    threads = min(torch.get_num_threads(), max(1, blocks // _FEWEST))
    bounds = [blocks * part // threads for part in range(threads + 1)]
    others = [
        _pool(os.getpid()).submit(function, *arguments, *bounds[part : part + 2])
        for part in range(1, threads)
    ]
    function(*arguments, *bounds[:2])
    for other in others:
        other.result()


@cache
def _pool(_process: int) -> ThreadPoolExecutor:
    """Return the threads of a process; a process that was forked has none of its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), "neaptide-host")


@cache
def _function(name: str) -> Any:
    """Import a function; say so if Numba will compile it, which takes seconds once."""
    function = getattr(import_module(f"{__package__}.host"), name)
    if not any(Path(function.stats.cache_path).glob(f"*.{name}-*.nbi")):
        logging.getLogger("neaptide").warning(
            "%s is compiled for this CPU, once: it takes some seconds", name
        )
    return function
