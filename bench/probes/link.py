"""The rates of the link between host and device, alone and in parallel with other work."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from probes.checks import MIB, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from probes.checks import Check, Finding

SIDES = {"full": 8192, "quick": 4096, "tiny": 256}
# Several times the size of a processor's cache, so that RAM is measured.
BUFFERS = {"full": 512 * MIB, "quick": 512 * MIB, "tiny": 2 * MIB}
PIECES = {"full": (16 * MIB, 256 * MIB), "quick": (16 * MIB, 256 * MIB), "tiny": (MIB,)}
COVER = 3.0
TRIES = 4
GIGA, TERA = 1e9, 1e12


@dataclass(frozen=True)
class Effort:
    """How often each figure is measured, and for how many seconds each time."""

    repeats: int
    seconds: float


EFFORTS = {"full": Effort(9, 0.01), "quick": Effort(9, 0.01), "tiny": Effort(2, 0.002)}


@dataclass(frozen=True, eq=False)
class Work:
    """Repeatable work on a stream. One call copies some bytes, or computes some operations."""

    stream: torch.cuda.Stream
    issue: Callable[[], object]
    amount: float
    effort: Effort

    def enqueue(self, calls: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Issue the work `calls` times. Return the event before the work and the event after it."""
        start, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        with torch.cuda.stream(self.stream):
            start.record(self.stream)
            for _ in range(calls):
                self.issue()
            end.record(self.stream)
        return start, end


def seconds_between(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Return the seconds from one event to another event."""
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3


@cache
def seconds_alone(work: Work) -> float:
    """Return the time of one call without other work, after a warm-up."""
    torch.cuda.synchronize()
    work.enqueue(2)
    torch.cuda.synchronize()
    start, end = work.enqueue(3)
    torch.cuda.synchronize()
    return seconds_between(start, end) / 3


def rate(work: Work, beside: Sequence[Work] = ()) -> float:
    """Return bytes or operations per second of `work` while all work in `beside` runs in parallel.

    Raise RuntimeError if, in every try, some work in `beside` does not cover the whole time of
    `work`.
    """
    calls = math.ceil(work.effort.seconds / seconds_alone(work))
    cover = COVER * calls * seconds_alone(work)
    for _ in range(TRIES):
        torch.cuda.synchronize()
        others = [other.enqueue(1 + math.ceil(cover / seconds_alone(other))) for other in beside]
        start, end = work.enqueue(calls)
        torch.cuda.synchronize()
        if all(
            seconds_between(other_start, start) >= 0 and seconds_between(end, other_end) >= 0
            for other_start, other_end in others
        ):
            return calls * work.amount / seconds_between(start, end)
        cover *= 2
    msg = f"in {TRIES} tries the other work always ended first: they may share one engine"
    raise RuntimeError(msg)


def rates(work: Work, beside: Sequence[Work], unit: str, scale: float) -> Finding:
    """Return the median and the range of repeated calls of `rate`."""
    return spread([rate(work, beside) / scale for _ in range(work.effort.repeats)], unit)


def copies(target: Tensor, source: Tensor, piece: int, effort: Effort) -> Work:
    """Return work that repeatedly copies from `source` to `target` in pieces on a new stream."""
    places = cycle(range(0, len(source), piece))

    def copy_next() -> None:
        place = next(places)
        target[place : place + piece].copy_(source[place : place + piece], non_blocking=True)

    return Work(new_stream(target, source), copy_next, piece, effort)


def new_stream(*tensors: Tensor) -> torch.cuda.Stream:
    """Return a new stream on the device of the tensors."""
    device = next(tensor.device for tensor in tensors if tensor.is_cuda)
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def matmul(device: torch.device, side: int, dtype: torch.dtype, effort: Effort) -> Work:
    """Return work that multiplies two square matrices."""
    left, right, product = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(3))
    issue = partial(torch.mm, left, right, out=product)
    return Work(new_stream(left), issue, 2 * side**3, effort)


def pageable(target: Tensor, source: Tensor, piece: int, repeats: int) -> Finding:
    """Copy from or to unpinned memory. Use the host's clock, because the copy blocks the host."""
    values = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for place in range(0, len(source), piece):
            target[place : place + piece].copy_(source[place : place + piece])
        torch.cuda.synchronize()
        values.append(len(source) / (time.perf_counter() - start) / GIGA)
    return spread(values[1:], "GB/s")


def slowdown(work: Work, beside: Sequence[Work]) -> Finding:
    """Return how much longer `work` takes in parallel with `beside`, relative to its time alone."""
    repeats = work.effort.repeats
    alone = statistics.median(rate(work) for _ in range(repeats))
    longer = [alone / rate(work, beside) - 1 for _ in range(repeats)]
    middle = statistics.median(longer)
    return {
        "summary": (
            f"takes {middle:+.1%} time ({min(longer):+.1%} to {max(longer):+.1%}, n={repeats})"
        ),
        "median": middle,
        "values": longer,
        "unit": "share of the time alone",
    }


@dataclass(frozen=True)
class Buffers:
    """Sources and targets of the copies: pinned and pageable host memory, two device buffers."""

    pinned_out: Tensor
    pinned_in: Tensor
    plain: Tensor
    departing: Tensor
    arriving: Tensor


def buffers(device: torch.device, size: int) -> Buffers:
    """Allocate all buffers and write to each of them once."""
    room = partial(torch.ones, size, dtype=torch.uint8)
    return Buffers(
        pinned_out=room(pin_memory=True),
        pinned_in=room(pin_memory=True),
        plain=room(),
        departing=room(device=device),
        arriving=room(device=device),
    )


def copy_checks(memory: Buffers, piece: int, product: Work) -> Iterator[Check]:
    """Yield the checks of copies in both directions, in pieces of one size."""
    size = f"{piece // MIB} MiB pieces"
    effort = product.effort
    up = copies(memory.arriving, memory.pinned_out, piece, effort)
    down = copies(memory.pinned_in, memory.departing, piece, effort)
    both: tuple[tuple[str, Work, Work], ...] = (("H2D", up, down), ("D2H", down, up))
    for name, work, opposite in both:
        company: dict[str, tuple[Work, ...]] = {
            "alone": (),
            "beside the other direction": (opposite,),
            "beside a matmul": (product,),
            "beside both": (opposite, product),
        }
        for described, beside in company.items():
            find = partial(rates, work, beside, "GB/s", GIGA)
            yield f"{name} pinned, {size}, {described}", find
    unpinned = partial(pageable, piece=piece, repeats=effort.repeats)
    yield f"H2D pageable, {size}", partial(unpinned, memory.arriving, memory.plain)
    yield f"D2H pageable, {size}", partial(unpinned, memory.plain, memory.departing)
    yield f"matmul beside H2D, {size}", partial(slowdown, product, (up,))
    yield f"matmul beside D2H, {size}", partial(slowdown, product, (down,))
    yield f"matmul beside both directions, {size}", partial(slowdown, product, (up, down))
    between = copies(memory.arriving, memory.departing, piece, effort)
    yield f"device to device, {size}", partial(rates, between, (), "GB/s copied", GIGA)


def checks(device: torch.device, *, size: str) -> Iterator[Check]:
    """Yield the check of the matmul, then the checks of the copies for each size of piece."""
    side = SIDES[size]
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    dtype = torch.bfloat16 if native else torch.float16
    if size == "tiny":
        dtype = torch.float32  # a CPU without bfloat16 would simulate a product for 25 ms
    product = matmul(device, side, dtype, EFFORTS[size])
    name = str(dtype).removeprefix("torch.")
    yield f"{name} matmul, {side} x {side}", partial(rates, product, (), "TFLOP/s", TERA)
    memory = buffers(device, BUFFERS[size])
    for piece in PIECES[size]:
        yield from copy_checks(memory, piece, product)
