"""Measures the rates of the machine, and computes the shortest possible time of a step."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from neaptide_toolkit.offload import lane_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPEATS = 5
SIDE, COPY = 8192, 256 * 2**20
TINY_SIDE, TINY_COPY = 64, 2**16


def wait(device: torch.device) -> None:
    """Wait until the device has finished all issued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(action: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of the action. An earlier call warms up and is not counted."""
    taken = []
    for _ in range(REPEATS + 1):
        wait(device)
        start = time.perf_counter()
        action()
        wait(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def rates(device: torch.device, *, tiny: bool) -> dict[str, float]:
    """Return the bfloat16 TFLOP/s of a matmul, and the GB/s of the link.

    The link is measured in each direction alone, and in both directions together.
    """
    side, size = (TINY_SIDE, TINY_COPY) if tiny else (SIDE, COPY)
    one, other = (torch.ones(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    product = torch.empty_like(one)

    def multiply() -> None:
        for _ in range(10):
            torch.mm(one, other, out=product)

    operations = 10 * 2 * side**3 / timed(multiply, device)
    pinned = device.type == "cuda"
    near = [torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2)]
    far = [torch.ones(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
    lanes = [lane_for(device, name) for name in ("to device", "to host")]
    ways = [(near[0], far[0]), (far[1], near[1])]

    def copy(chosen: Sequence[int]) -> None:
        tickets = []
        for _ in range(8):
            for way in chosen:
                target, source = ways[way]

                def work(target: Any = target, source: Any = source) -> None:
                    target.copy_(source, non_blocking=True)

                tickets.append(lanes[way].submit("copy", work))
        for ticket in tickets:
            ticket.finish()

    amount = 8 * size / 1e9
    found = {
        "matmul_tflops": operations / 1e12,
        "h2d_gbs": amount / timed(lambda: copy([0]), device),
        "d2h_gbs": amount / timed(lambda: copy([1]), device),
        "together_gbs": amount / timed(lambda: copy([0, 1]), device),
    }
    for lane in lanes:
        lane.close()
    return found


def roofline(
    found: dict[str, float], operations: float, h2d: float, d2h: float
) -> tuple[dict[str, float], str, float]:
    """Return the shortest possible time of each lane, the slowest lane, and its time, in seconds.

    A step has three lanes, which can run at the same time: computation (`compute`), copies to the
    device (`h2d`) and copies to the host (`d2h`).

    Args:
        found: the result of `rates`. If a step copies in both directions, each direction has the
            rate `together_gbs`.
        operations: floating-point operations of a step.
        h2d: bytes that a step copies to the device.
        d2h: bytes that a step copies to the host.
    """
    together = found["together_gbs"]
    in_rate, out_rate = (
        (together, together) if h2d and d2h else (found["h2d_gbs"], found["d2h_gbs"])
    )
    lanes = {
        "compute": operations / found["matmul_tflops"] / 1e12,
        "h2d": h2d / in_rate / 1e9,
        "d2h": d2h / out_rate / 1e9,
    }
    binding = max(lanes, key=lambda lane: lanes[lane])
    return lanes, binding, lanes[binding]
