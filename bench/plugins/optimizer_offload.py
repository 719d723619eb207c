"""Memory that each strategy of optimizer-offload frees, and the time to move the state.

    python bench/plugins/optimizer_offload.py [--json PATH] [--rounds N] [--width N] [--device cpu]

The model is an MLP of four square layers with Adam in float32. torch's allocator counts
the bytes of weights and optimizer state: once with the state on the device, once with the state
offloaded. Times are medians, divided by the time of a training step of the same model.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neaptide_plugins.optimizer_offload.choosing import mechanism
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.testing.allocations import Allocations, counted

if TYPE_CHECKING:
    from collections.abc import Callable

STRATEGIES = ("none", "cpu", "pinned", "compress", "drop")
LAYERS = 4
SAMPLES = 64


def trained(width: int, device: torch.device) -> tuple[nn.Module, Any, Callable[[], None]]:
    """Return a model, its optimizer after one update, and a function that makes one more update."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = torch.randn(SAMPLES, width, device=device)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return model, optimizer, step


def timed(action: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of `action`, including the work that it starts on the device."""
    started = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def times(strategy: str, width: int, rounds: int, device: torch.device) -> dict[str, float]:
    """Return the median seconds of a step, of the offload, and of the copy back to the device."""
    model, optimizer, step = trained(width, device)
    store = ResidentStore(model, optimizer)
    spans = store.spans()
    mover = mechanism(strategy, store, spans, device)
    seconds: dict[str, list[float]] = {"step": [], "leaving": [], "returning": []}
    for _ in range(rounds):
        seconds["step"].append(timed(step, device))
        if mover is not None:
            seconds["leaving"].append(timed(lambda: mover.leave(store, spans), device))
            seconds["returning"].append(timed(mover.finish, device))
    return {name: statistics.median(each) if each else 0.0 for name, each in seconds.items()}


def held(strategy: str, width: int, device: torch.device) -> tuple[int, int]:
    """Return the allocator's bytes with the state on the device, and with the state offloaded."""
    marks: dict[str, int] = {}
    gpu = device.type == "cuda"
    gc.collect()  # frees the tensors of an earlier strategy
    before = torch.cuda.memory_allocated(device) if gpu else 0

    def mark(name: str) -> None:
        Allocations.mark(name)
        if gpu:
            marks[name] = torch.cuda.memory_allocated(device) - before

    with counted() as allocations:
        model, optimizer, _ = trained(width, device)
        store = ResidentStore(model, optimizer)
        spans = store.spans()
        mover = mechanism(strategy, store, spans, device)
        mark("rest")
        if mover is not None:
            mover.leave(store, spans)
        mark("away")
        del model, optimizer, store, spans, mover
    if not gpu:
        marks = {name: values[0] for name, values in allocations.at_marks().items()}
    return marks["rest"], marks["away"]


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    rows = []
    print("| strategy | MB at rest | MB in Predict | freed | leaving | returning |")
    print("|---|---|---|---|---|---|")
    for strategy in STRATEGIES:
        rest, away = held(strategy, options.width, device)
        seconds = times(strategy, options.width, options.rounds, device)
        leaving, returning = (seconds[each] / seconds["step"] for each in ("leaving", "returning"))
        freed = 1 - away / rest
        rows.append(
            {
                "strategy": strategy,
                "bytes_at_rest": rest,
                "bytes_in_predict": away,
                "seconds": seconds,
            }
        )
        print(
            f"| {strategy} | {rest / 1e6:.1f} | {away / 1e6:.1f} | {freed:.1%} | "
            f"{leaving:.2f} steps | {returning:.2f} steps |"
        )
    if options.json:
        facts = {"machine": platform.machine(), "torch": torch.__version__, "device": str(device)}
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path of the caller
            json.dump({**facts, "width": options.width, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
