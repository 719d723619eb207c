"""Measures the seconds of one call, and the machine's peak rates."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_COPY, _SIDE = 256 * 2**20, 8192
_CPU_COPY, _CPU_SIDE = 64 * 2**20, 1024
_QUICK_COPY, _QUICK_SIDE = 2**16, 64
_REPEATS = 7
_CACHE = 256 * 2**20


def seconds(action: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call.

    On a GPU, CUDA events time the call, and the L2 cache is cold.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        action()
        return time.perf_counter() - start
    torch.empty(_CACHE, dtype=torch.uint8, device=device).zero_()
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start_event.record()
    action()
    end_event.record()
    torch.cuda.synchronize(device)
    return float(start_event.elapsed_time(end_event)) / 1e3


def ceilings(device: torch.device, *, quick: bool) -> dict[str, float]:
    """Return the bytes per second of a copy, and the FLOP/s of a matmul.

    The bytes of a copy are the bytes read plus the bytes written.
    """
    gpu = device.type == "cuda"
    size, side = (_COPY, _SIDE) if gpu else (_CPU_COPY, _CPU_SIDE)
    if quick:
        size, side = _QUICK_COPY, _QUICK_SIDE
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    dtype = torch.bfloat16 if gpu else torch.float32
    factor = torch.ones(side, side, dtype=dtype, device=device)
    product = torch.empty_like(factor)
    return {
        "copy_bytes_per_s": 2 * size / _median(lambda: target.copy_(source), device),
        "matmul_flops": 2
        * side**3
        / _median(lambda: torch.mm(factor, factor, out=product), device),
    }


def _median(action: Callable[[], object], device: torch.device) -> float:
    action()
    return statistics.median(seconds(action, device) for _ in range(_REPEATS))
