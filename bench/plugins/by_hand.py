"""Compare plugins with the same work in hand-written PyTorch, per step and per tensor.

    python bench/plugins/by_hand.py [--json PATH] [--rounds N] [--device cuda]

A subject is a loop by hand or a trainer with plugins. All subjects run in one process, in an order
that changes from round to round. In each round the time of a subject's partner is subtracted; a
figure is the median of these differences, with quartiles. On a CPU the times are times of the
process, so that other processes disturb them less. Calls of functions in Python, which are not
disturbed at all, are counted as well.

The first table has the net of `overhead.py`, with 6 tensors; the partner is the same work by hand.
The second table has a net of 400 tensors of 256 elements, of which only one has a gradient, and
plugins that follow every weight. The partner is the bare loop or the trainer without plugins. The
differences are divided by the number of tensors.
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
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from overhead import SHIPPED
from overheads import task

from neaptide import HybridTrainer
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[Any], object]
    Subjects = dict[str, tuple[Step, str]]
    """The subjects by name: a step, and the name of the partner."""

TENSORS, STEPS, SETTLING, PIECES = 400, 5, 5, 4
_FEWEST_ROUNDS = 2
BARE, ALONE = "bare loop", "trainer"


def trained(model: nn.Module, optimizer: Any, loss_fn: Any, plugins: dict[str, Any]) -> Step:
    """Return the method `step` of a trainer with plugins, in the phase Full."""
    config = {"phases": {"warmup": {"steps": 0}}, "plugins": plugins}
    return HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config).step


def in_bf16(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the loss of a forward in bfloat16."""
    with torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
        return task.loss_fn(model, batch)


def by_hand(device: str, loss_fn: Any, pieces: int = 1) -> Step:
    """Return a step of a bare loop with `pieces` micro-batches."""
    model = task.net().to(device)
    optimizer = task.optimizer_of(model)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        for part in zip(*(each.chunk(pieces) for each in batch), strict=True):
            loss = loss_fn(model, part)
            (loss if pieces == 1 else loss / pieces).backward()
        optimizer.step()

    return step


def of_a_step(device: str) -> Subjects:
    """Return plugins and, as their partners, the same work by hand."""

    def plugin(plugins: dict[str, Any]) -> Step:
        model = task.net().to(device)
        return trained(model, task.optimizer_of(model), task.loss_fn, plugins)

    hand = {
        BARE: by_hand(device, task.loss_fn),
        "autocast by hand": by_hand(device, in_bf16),
        "accumulation by hand": by_hand(device, task.loss_fn, PIECES),
    }
    return {
        **{name: (step, BARE) for name, step in hand.items()},
        ALONE: (plugin({}), BARE),
        "mixed-precision": (plugin({"mixed-precision": {"dtype": "bf16"}}), "autocast by hand"),
        "gradient-accumulation": (
            plugin({"gradient-accumulation": {"steps": PIECES}}),
            "accumulation by hand",
        ),
        f"{len(SHIPPED)} shipped plugins": (plugin(SHIPPED), BARE),
    }


def many(device: str) -> tuple[nn.ParameterList, torch.optim.Optimizer]:
    """Return a net of many small tensors, and its optimizer."""
    net = nn.ParameterList(nn.Parameter(torch.randn(16, 16)) for _ in range(TENSORS)).to(device)
    return net, torch.optim.SGD(net.parameters(), lr=1e-3)


def first_of(model: Any, _batch: Any) -> torch.Tensor:
    """Return a loss that depends on one tensor."""
    total: torch.Tensor = model[0].sum()
    return total


def followed(device: str, follow: Callable[[list[Any], list[Any]], None] | None) -> Step:
    """Return a step of a bare loop that ends with `follow(held, weights)`."""
    net, optimizer = many(device)
    weights, held = list(net), [weight.detach().clone() for weight in net]

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        first_of(net, batch).backward()
        optimizer.step()
        if follow is not None:
            with torch.no_grad():
                follow(held, weights)

    return step


def of_a_tensor(device: str, samples: int) -> Subjects:
    """Return plugins and loops that follow every weight; windows are not full before `samples`."""
    longest = {"sample_every": 1, "tier": "device"}
    riders: dict[str, dict[str, Any]] = {
        "ema": {},
        "predictor-drift": {**longest, "min_window": samples, "max_window": samples},
        "predictor-momentum": {**longest, "samples": samples},
        "predictor-dmd": {**longest, "snapshots": samples},
    }
    found: Subjects = {
        BARE: (followed(device, None), BARE),
        "average by hand": (
            followed(device, lambda held, new: torch._foreach_lerp_(held, new, 1e-3)),
            BARE,
        ),
        "sum by hand": (
            followed(device, lambda held, new: torch._foreach_add_(held, new, alpha=0.5)),
            BARE,
        ),
        ALONE: (trained(*many(device), first_of, {}), BARE),
    }
    for name, settings in riders.items():
        found[name] = (trained(*many(device), first_of, {name: settings}), ALONE)
    return found


def calls(step: Step, batch: Any) -> int:
    """Return the calls of functions in Python of a step: other programs do not disturb them."""
    counts = []
    for _ in range(STEPS):
        found = 0

        def count(_frame: Any, event: str, _what: Any) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(count)
        step(batch)
        sys.setprofile(None)
        counts.append(found)
    return round(statistics.median(counts))


def measure(
    subjects: Subjects, batches: list[Any], rounds: int, device: str, per: int
) -> list[dict[str, Any]]:
    """Return the rows of a table; differences are divided by `per`."""
    now = time.process_time if device == "cpu" else time.perf_counter
    taken: dict[str, list[float]] = {name: [] for name in subjects}

    def run(step: Step, steps: int) -> float:
        started = now()
        for index in range(steps):
            step(batches[index % len(batches)])
        if device == "cuda":
            torch.cuda.synchronize()
        return (now() - started) / steps * 1e6

    for step, _ in subjects.values():
        run(step, SETTLING)
    called = {name: calls(step, batches[0]) for name, (step, _) in subjects.items()}
    order, shuffle = list(subjects), random.Random(0)  # noqa: S311 - random order, no secret
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            taken[name].append(run(subjects[name][0], STEPS))
    rows = []
    for name, (_, partner) in subjects.items():
        pairs = zip(taken[name], taken[partner], strict=True)
        low, middle, high = statistics.quantiles([(one - other) / per for one, other in pairs], n=4)
        row = {"subject": name, "us_a_step": statistics.median(taken[name]), "partner": partner}
        row |= {"over_us": middle, "over_quartiles_us": [low, high]}
        rows.append({**row, "calls": called[name], "over_calls": called[name] - called[partner]})
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    print(f"\n| subject | us a step | {title} | quartiles | calls over | partner |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        low, high = row["over_quartiles_us"]
        print(
            f"| {row['subject']} | {row['us_a_step']:.0f} | {row['over_us']:+.2f} | "
            f"{low:+.2f} … {high:+.2f} | {row['over_calls']:+d} | {row['partner']} |"
        )


def main() -> None:
    """Measure, print the tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    if options.rounds < _FEWEST_ROUNDS:
        parser.error(f"--rounds must be at least {_FEWEST_ROUNDS} (got {options.rounds})")
    torch.set_num_threads(1)
    device, rounds = options.device, options.rounds
    samples = SETTLING + STEPS * (rounds + 1) + 2
    samples += samples % 2
    step = measure(of_a_step(device), task.batches(device), rounds, device, 1)
    tensor = measure(of_a_tensor(device, samples), [0], rounds, device, TENSORS)
    show("us over the partner", step)
    show("us a tensor over the partner", tensor)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path of the caller
            content = {"machine": facts(), "device": device, "threads": 1, "rounds": rounds}
            json.dump({**content, "step": step, "tensor": tensor}, file, indent=2)


if __name__ == "__main__":
    main()
