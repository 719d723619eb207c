"""Measure what the gradient norm adds to an update, and what of this a run pays by default.

    python bench/runs/gradient_norm.py [--json PATH] [--pairs N] [--device cuda]

One trainer trains each model. Two updates make a pair: the norm of one of them is measured, in an
order that is random. A figure is the median over the pairs of (time with - time without) / median
time without, with quartiles. On a CPU the times are the times of the process, so that other
processes disturb them less. `default` is the part that a run pays that asks for no norm: the whole
in a large model, else a tenth, because then every tenth norm is measured.

The second table has the norm of a jump, which the guard measures before it tries the jump, and two
other ways to sum the squares, in milliseconds: medians of rounds in which each way runs once.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from overheads import task

from neaptide import HybridTrainer
from neaptide.norms import long_norm
from neaptide_plugins.builtin_models import byte_gpt
from neaptide_plugins.builtin_models.config import ByteGptOptions
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_NEVER = 1 << 60


def small() -> Any:
    """Return the net of `overhead.py`, its loss and its batches."""
    return task.net, task.loss_fn, task.batches()


def gpt(layers: int, width: int, samples: int, length: int) -> Any:
    """Return a GPT, its loss and its batches `[samples, length + 1]`."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return byte_gpt.build(ByteGptOptions(layers=layers, width=width, heads=4, context=length))

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        total, count = byte_gpt.loss(model, batch)
        return total / count

    ids = torch.randint(256, (4, samples, length + 1), generator=torch.Generator().manual_seed(1))
    return build, loss_fn, [{"tokens": each} for each in ids]


MODELS: dict[str, Callable[[], Any]] = {
    "three layers": small,
    "GPT, batch 4 x 32": lambda: gpt(2, 64, 4, 32),
    "GPT, batch 16 x 128": lambda: gpt(4, 128, 16, 128),
    "GPT of 3 million, batch 1 x 32": lambda: gpt(4, 256, 1, 32),
    "GPT of 11 million, batch 4 x 128": lambda: gpt(6, 384, 4, 128),
}


def measure(name: str, pairs: int, device: str) -> dict[str, Any]:
    """Return the figures of one model."""
    build, loss_fn, batches = MODELS[name]()
    batches = [
        {k: v.to(device) for k, v in one.items()}
        if isinstance(one, dict)
        else tuple(part.to(device) for part in one)
        for one in batches
    ]
    model = build().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = {"phases": {"warmup": {"steps": 0}}}
    trainer = HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config)
    loop, shuffle = trainer._session.loop, random.Random(0)  # noqa: S311, SLF001 - no secret
    default = loop._norm_every  # noqa: SLF001 - the rule's result
    now = time.process_time if device == "cpu" else time.perf_counter

    def seconds(batch: Any, every: int) -> float:
        loop._norm_every = every  # noqa: SLF001 - there is no setting that means never
        started = now()
        trainer.step(batch)
        if device == "cuda":
            torch.cuda.synchronize()
        return now() - started

    taken: dict[int, list[float]] = {1: [], _NEVER: []}
    with trainer:
        for number in range(pairs + 3):
            for every in shuffle.sample(list(taken), 2):
                taken[every].append(seconds(batches[number % len(batches)], every))
    with_norm, without = taken[1][3:], taken[_NEVER][3:]  # the first updates warm up
    base = statistics.median(without)
    shares = [(one - other) / base for one, other in zip(with_norm, without, strict=True)]
    low, middle, high = statistics.quantiles(shares, n=4)
    return {
        "model": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "ms_an_update": base * 1e3,
        "pairs": pairs,
        "every": middle,
        "every_quartiles": [low, high],
        "default": middle / default,
    }


def ways_to_sum(delta: torch.Tensor) -> dict[str, Callable[[], float]]:
    """Return ways to compute the norm of the delta of one weight."""
    norm = torch.linalg.vector_norm
    return {
        "the guard's": lambda: long_norm(delta),
        "one float64 sum": lambda: float(norm(delta, dtype=torch.float64)),
        "one float32 sum": lambda: float(norm(delta)),
    }


def of_a_jump(elements: int, device: str, rounds: int = 7) -> list[dict[str, Any]]:
    """Return, for each way, the time and the error relative to the float64 sum."""
    delta = torch.randn(elements, generator=torch.Generator().manual_seed(0)).mul_(1e-3).to(device)
    ways = ways_to_sum(delta)
    taken: dict[str, list[float]] = {way: [] for way in ways}
    found = {way: run() for way, run in ways.items()}
    for _ in range(rounds):
        for way, run in ways.items():
            started = time.perf_counter()
            run()  # reads the result, so it waits for the device
            taken[way].append((time.perf_counter() - started) * 1e3)
    exact = found["one float64 sum"]
    rows = []
    for way, times in taken.items():
        low, middle, high = statistics.quantiles(times, n=4)
        error = abs(found[way] / exact - 1.0)
        row = {"way": way, "elements": elements, "ms": middle, "quartiles_ms": [low, high]}
        rows.append({**row, "relative_error": error})
    return rows


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--models", type=int, default=len(MODELS), help="the first N models only")
    parser.add_argument("--jump", type=int, default=25_000_000, help="elements of the jump")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("| model | parameters | ms an update | every norm | quartiles | default |")
    print("|---|---|---|---|---|---|")
    for name in list(MODELS)[: options.models]:
        row = measure(name, options.pairs, options.device)
        rows.append(row)
        low, high = row["every_quartiles"]
        start = (
            f"| {name} | {row['parameters']:,} | {row['ms_an_update']:.2f} | {row['every']:+.2%}"
        )
        print(f"{start} | {low:+.2%} … {high:+.2%} | {row['default']:+.2%} |", flush=True)
    jump = of_a_jump(options.jump, options.device)
    print("\n| norm of a jump | ms | quartiles | relative error |\n|---|---|---|---|")
    for row in jump:
        low, high = row["quartiles_ms"]
        error = f"{row['relative_error']:.1e}"
        print(f"| {row['way']} | {row['ms']:.1f} | {low:.1f} … {high:.1f} | {error} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path of the caller
            content = {
                "machine": facts(),
                "device": options.device,
                "threads": 1,
                "rows": rows,
                "jump": jump,
            }
            json.dump(content, file, indent=2)


if __name__ == "__main__":
    main()
