"""What optimizers take: bytes of a parameter, and the time of an update.

    python bench/plugins/optimizers.py [--matrices N] [--side N] [--rounds N] [--device cuda]
        [--json PATH]

Every optimizer has its own matrices of one size, with the same gradients. Each round has one update
by each, in an order that changes. The first two rounds are not counted: they build and check ops.
Bytes are those of the weights and of all tensors of the state after an update. Milliseconds are the
median, the lowest and the highest over the rounds. Ratios are to the fused AdamW of torch in
float32, in the same round.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neaptide_plugins.adafactor.optimizer import Adafactor
from neaptide_plugins.adam8bit.optimizer import Adam8bit
from neaptide_plugins.adam_mini.optimizer import AdamMini
from neaptide_plugins.ademamix.optimizer import AdEMAMix
from neaptide_plugins.apollo.optimizer import Apollo
from neaptide_plugins.lion.optimizer import Lion
from neaptide_plugins.lion8bit.optimizer import Lion8bit
from neaptide_plugins.muon.optimizer import Muon
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable

BASE = "AdamW of torch, fused"
_UNCOUNTED = 2
_WHOLE, _HALF = torch.float32, torch.bfloat16
_MINI = partial(Apollo, rank=1, scale_type="tensor", alpha=128**0.5)

WAYS: list[tuple[str, torch.dtype, Callable[..., torch.optim.Optimizer]]] = [
    (BASE, _WHOLE, partial(torch.optim.AdamW, fused=True)),
    (BASE, _HALF, partial(torch.optim.AdamW, fused=True)),
    ("muon", _WHOLE, Muon),
    ("ademamix", _WHOLE, AdEMAMix),
    ("adam-mini", _WHOLE, AdamMini),
    ("lion", _WHOLE, Lion),
    ("apollo", _WHOLE, Apollo),
    ("apollo, mini", _WHOLE, _MINI),
    ("adafactor", _WHOLE, Adafactor),
    ("adam8bit", _WHOLE, Adam8bit),
    ("lion8bit", _WHOLE, Lion8bit),
    *(
        (f"{name}, rounding {rounding}", _HALF, partial(kind, rounding=rounding))
        for name, kind in (
            ("adam-mini", AdamMini),
            ("lion", Lion),
            ("apollo", Apollo),
            ("apollo, mini", _MINI),
            ("adafactor", Adafactor),
        )
        for rounding in ("stochastic", "nearest")
    ),
    ("adam8bit", _HALF, Adam8bit),
    ("lion8bit", _HALF, Lion8bit),
]
"""Name, dtype of the weights, and what builds the optimizer."""


def built(
    dtype: torch.dtype, make: Callable[..., torch.optim.Optimizer], options: argparse.Namespace
) -> torch.optim.Optimizer:
    """Return an optimizer of matrices that have gradients."""
    generator = torch.Generator().manual_seed(0)
    params = []
    for _ in range(options.matrices):
        values = torch.randn(options.side, options.side, generator=generator)
        param = torch.nn.Parameter(values.to(options.device, dtype))
        param.grad = values.mul(1e-2).to(param)
        params.append(param)
    return make(params, lr=1e-3)


def held(optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """Return the bytes of weights and of state for each parameter."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    count = sum(param.numel() for param in params)
    state = sum(
        value.nbytes
        for param in params
        for value in optimizer.state[param].values()
        if isinstance(value, torch.Tensor)
    )
    return sum(param.nbytes for param in params) / count, state / count


def milliseconds(optimizer: torch.optim.Optimizer, device: str) -> float:
    """Return the time of an update."""
    started = time.perf_counter()
    optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e3


def spread(values: list[float], form: str) -> str:
    """Return the median, the lowest and the highest."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}} ({low:{form}} to {high:{form}})"


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--matrices", type=int, default=10)
    parser.add_argument("--side", type=int, default=1024, help="rows and columns of a matrix")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    made = [built(dtype, make, options) for _, dtype, make in WAYS]
    taken: list[list[float]] = [[] for _ in WAYS]
    shuffle = random.Random(0)  # noqa: S311 - an order, no secret
    for number in range(_UNCOUNTED + options.rounds):
        for place in shuffle.sample(range(len(WAYS)), len(WAYS)):
            found = milliseconds(made[place], options.device)
            if number >= _UNCOUNTED:
                taken[place].append(found)
    rows: list[dict[str, Any]] = []
    print("| optimizer | weights | bytes: weight | state | together | ms an update | x |")
    print("|---|---|---|---|---|---|---|")
    for (name, dtype, _), optimizer, times in zip(WAYS, made, taken, strict=True):
        weight, state = held(optimizer)
        ratios = [one / base for one, base in zip(times, taken[0], strict=True)]
        kind = str(dtype).removeprefix("torch.")
        sizes = f"{weight:.0f} | {state:.2f} | {weight + state:.2f}"
        print(f"| {name} | {kind} | {sizes} | {spread(times, '.1f')} | {spread(ratios, '.2f')} |")
        rows.append(
            {
                "optimizer": name,
                "dtype": kind,
                "weight_bytes": weight,
                "state_bytes": state,
                "ms": times,
                "x": ratios,
            }
        )
    if options.json:
        report = {
            "machine": facts(),
            "device": options.device,
            "parameters": options.matrices * options.side**2,
            "rows": rows,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
