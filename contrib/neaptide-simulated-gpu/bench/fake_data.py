"""How much faster the shape cache makes a training step of fake data.

A decoder of Llama's shape (1.3B parameters in bfloat16) takes steps of AdamW on 2,048 tokens. Steps
with and without the cache alternate in one process. The floor is the same step on the CPU with
tensors of a few elements: Python, autograd and dispatch, without the device.

    python bench/fake_data.py [--steps 10] [--layers 24] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import simulated_gpu
import torch
from models import Model

LARGE = {"vocabulary": 32000, "width": 2048, "heads": 16, "hidden": 5632}
TINY = {"vocabulary": 8, "width": 8, "heads": 2, "hidden": 8}
WARM = 2


class Training:
    """A model, its optimizer and a batch; `step` returns its seconds."""

    def __init__(
        self, shape: dict[str, int], layers: int, tokens: tuple[int, int], device: str
    ) -> None:
        self.model = Model(**shape, layers=layers, dtype=torch.bfloat16, device=device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, foreach=True)
        self.tokens = torch.zeros(tokens, dtype=torch.long, device=device)

    def step(self) -> float:
        started = time.perf_counter()
        logits = self.model(self.tokens[:, :-1]).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, self.tokens[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - started


def measured(steps: int, layers: int) -> dict[str, Any]:
    """Return the seconds of each kind of step, and the ratio of each pair with and without."""
    torch.set_num_threads(1)
    simulated_gpu.configure(capacity=1 << 40)
    small = Training(TINY, layers, (1, 3), "cpu")
    seconds: dict[str, list[float]] = {"without": [], "with": [], "floor": []}
    with simulated_gpu.fake_data():
        large = Training(LARGE, layers, (4, 513), "cuda")
        for _ in range(WARM + steps):
            for kind in ("without", "with"):
                simulated_gpu.use_shape_cache(kind == "with")
                seconds[kind].append(large.step())
            seconds["floor"].append(small.step())
        launches = simulated_gpu.statistics()["launches"] / (2 * (WARM + steps))
        del large
        torch.cuda.empty_cache()
    kept = {kind: each[WARM:] for kind, each in seconds.items()}
    ratios = [a / b for a, b in zip(kept["without"], kept["with"], strict=True)]
    return {"launches": launches, **kept, "ratio": ratios}


def row(name: str, values: list[float], form: str) -> str:
    low, *_, high = sorted(values)
    middle = statistics.median(values)
    return f"{name:<22}" + "".join(f"{form.format(one):>12}" for one in (middle, low, high))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measured(given.steps, given.layers)
    if given.json:
        print(json.dumps(found))
        return
    print(f"{given.layers} layers, {found['launches']:.0f} launches a step, {given.steps} steps")
    print(f"{'':<22}{'median':>12}{'least':>12}{'most':>12}")
    print(row("without the cache, s", found["without"], "{:.4f}"))
    print(row("with the cache, s", found["with"], "{:.4f}"))
    print(row("floor on the CPU, s", found["floor"], "{:.4f}"))
    print(row("times faster", found["ratio"], "{:.1f}"))


if __name__ == "__main__":
    main()
