"""The time needed to allocate host memory, to pin it for the GPU, and to free it."""

from __future__ import annotations

import mmap
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from probes.checks import GIB, MIB
from probes.machine import host_room

if TYPE_CHECKING:
    from collections.abc import Iterator

    from probes.checks import Check, Finding

SIZES_MIB = {"full": (8192, 32768, 96256), "quick": (1024,), "tiny": (4,)}
MARGIN = 4 * GIB
BUDGET_SECONDS = 120.0
PIECE = 256 * MIB
FORMS = {
    # name: (touch the pages before registering them, request huge pages)
    "touched first": (True, False),
    "touched first, huge pages": (True, True),
    "untouched": (False, False),
}


def check(code: int, call: str) -> None:
    """Raise RuntimeError if the CUDA runtime returned an error."""
    if code:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        msg = f"{call}: {runtime.cudaGetErrorString(runtime.cudaError(code))}"
        raise RuntimeError(msg)


class Timer:
    """The seconds of named steps, in the order of the steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        """Record the time since the previous lap under `step`."""
        now = time.perf_counter()
        self.seconds[step] = now - self._last
        self._last = now


def pin(size: int, device: torch.device, *, touch: bool, huge: bool) -> Finding:
    """Map `size` bytes, pin them, copy from them, unpin them. Return the seconds of each step."""
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        region.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(region, dtype=torch.uint8)
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    timer = Timer()
    if touch:
        memory[:: mmap.PAGESIZE].fill_(1)
        timer.lap("touch")
    check(int(runtime.cudaHostRegister(memory.data_ptr(), size, 0)), "cudaHostRegister")
    timer.lap("register")
    try:
        known = memory.is_pinned()
        speed = copy_rate(memory, device)
    finally:
        timer.lap("copy")
        check(int(runtime.cudaHostUnregister(memory.data_ptr())), "cudaHostUnregister")
        timer.lap("unregister")
    del timer.seconds["copy"]
    each = ", ".join(f"{step} {seconds:.2f} s" for step, seconds in timer.seconds.items())
    return {
        "summary": f"{each}; then H2D {speed / 1e9:.1f} GB/s, pinned to torch: {known}",
        "seconds": timer.seconds,
        "bytes": size,
        "h2d_bytes_per_second": speed,
        "pinned_to_torch": known,
    }


def copy_rate(memory: torch.Tensor, device: torch.device) -> float:
    """Copy up to 4 GiB of `memory` to the device. Return the bytes per second."""
    size = min(PIECE, len(memory))
    target = torch.empty(size, dtype=torch.uint8, device=device)
    target.copy_(memory[:size], non_blocking=True)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    pieces = memory[: 4 * GIB].split(size)  # type: ignore[no-untyped-call]
    for piece in pieces:
        target[: len(piece)].copy_(piece, non_blocking=True)
    torch.cuda.synchronize(device)
    return float(len(pieces) * size / (time.perf_counter() - start))


class Budget:
    """Decides which measurements to skip if there is too little memory or time."""

    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds
        self.seconds_per_byte: dict[str, float] = {}

    def run(self, form: str, size: int, device: torch.device) -> Finding:
        """Measure one form of memory at one size, or return the reason why it is skipped."""
        room = host_room()
        if size + MARGIN > room:
            return {
                "summary": (
                    f"skipped: needs {(size + MARGIN) / GIB:.0f} GiB with its margin, and "
                    f"{room / GIB:.1f} GiB are available"
                ),
                "skipped": True,
            }
        expected = self.seconds_per_byte.get(form, 0.0) * size
        left = self.end - time.perf_counter()
        if expected > left:
            return {
                "summary": f"skipped: would take {expected:.0f} s of the {left:.0f} s left",
                "skipped": True,
            }
        start = time.perf_counter()
        touch, huge = FORMS[form]
        finding = pin(size, device, touch=touch, huge=huge)
        self.seconds_per_byte[form] = (time.perf_counter() - start) / size
        return finding


def checks(device: torch.device, *, size: str) -> Iterator[Check]:
    """Yield a check for each form of memory and each size, in ascending order of size."""
    torch.zeros(1, device=device)
    budget = Budget(BUDGET_SECONDS)
    for mebibytes in SIZES_MIB[size]:
        count = mebibytes * MIB
        name = f"{count // GIB} GiB" if count >= GIB else f"{mebibytes} MiB"
        for form in FORMS:
            find = partial(budget.run, form, count, device)
            yield f"{name}, {form}", find
