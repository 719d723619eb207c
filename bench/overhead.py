"""Measure the time that Neaptide and other trainers add to a step of a bare PyTorch loop.

    python bench/overhead.py [--json PATH] [--rounds N] [--steps N] [--device cuda] [--threads N]
    python bench/overhead.py --optimizers [...]

Needs `pip install lightning accelerate transformers` in addition to Neaptide; trainers that are not
installed are left out and listed. A subject is a trainer or the bare loop. Every subject trains the
same net of 7,000 parameters with AdamW on the same batches, so nearly all of a step is bookkeeping.
All subjects run in one process. In each round every subject makes the same number of steps, in an
order that changes from round to round. In each round the time of the bare loop is subtracted; a
figure is the median of these differences.

With `--optimizers`, the subjects are the optimizer of the configuration as it is by default, and
with `fused = false`, which is subtracted: on nets of three sizes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from overheads import optimizers
from overheads.rivals import RIVALS
from overheads.task import looped, loss_fn, net, optimizer_of
from overheads.task import step_of_plain_torch as bare

from neaptide import HybridTrainer, PluginSpec
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    Stepper = Callable[[int], float]
    """Makes the given number of steps; returns the seconds taken."""

_FEWEST_ROUNDS = 2
SHIPPED: dict[str, dict[str, Any]] = {
    "mixed-precision": {"dtype": "fp32"},
    "gradient-accumulation": {},
    "profiler": {},
    "divergence-monitor": {},
    "predictor-drift": {},
    "ema": {},
}
"""Plugins with little work of their own. Plugins that recompute or cast tensors are left out."""


def trained(
    config: dict[str, Any], plugins: tuple[PluginSpec, ...] = (), *, device: str
) -> Stepper:
    """Return a function that makes steps of a `HybridTrainer` with `config`."""
    model = net().to(device)
    train = {"device": device, **config.get("train", {})}
    config = {"phases": {"warmup": {"steps": 0}}, **config, "train": train}
    trainer = HybridTrainer(
        model, optimizer_of(model), loss_fn=loss_fn, config=config, plugins=plugins
    )
    return looped(trainer.step, device)


def eight() -> tuple[PluginSpec, ...]:
    """Return eight plugins that implement every hook of a step. The hooks do nothing."""
    return tuple(
        PluginSpec(name=f"idle-{number}", load="overheads.idle:Idle") for number in range(8)
    )


def subjects(directory: str, device: str) -> dict[str, Stepper]:
    """Return the subjects by name. Trainers that cannot be imported are left out.

    One of the subjects records its steps in `directory`. Other trainers run on the CPU only.
    """
    of_neaptide: dict[str, tuple[dict[str, Any], tuple[PluginSpec, ...]]] = {
        "no plugins": ({}, ()),
        "no plugins, check_finite off": ({"train": {"check_finite": False}}, ()),
        "8 idle plugins": ({}, eight()),
        f"{len(SHIPPED)} shipped plugins": ({"plugins": SHIPPED}, ()),
        "no plugins, run directory": ({"run": {"dir": directory}}, ()),
    }
    found: dict[str, Stepper] = {"bare loop": looped(bare(device), device)}
    for name, (config, plugins) in of_neaptide.items():
        found[f"Neaptide, {name}"] = trained(config, plugins, device=device)
    if device != "cpu":
        return found
    for name, (modules, make) in RIVALS.items():
        missing = [module for module in modules if find_spec(module) is None]
        if missing:
            sys.stderr.write(f"{name} is left out: pip install {' '.join(missing)}\n")
        else:
            found[name] = make()
    return found


def measure(steppers: dict[str, Stepper], rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the microseconds per step by subject, one figure per round."""
    order, shuffle = list(steppers), random.Random(0)  # noqa: S311 - random order, no secret
    for run in steppers.values():
        run(steps)
    taken: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            taken[name].append(steppers[name](steps) / steps * 1e6)
    return taken


def row(name: str, taken: list[float], base: list[float]) -> dict[str, Any]:
    """Return the median time of a step, and by how much it exceeds the base: the bare loop.

    All times are in microseconds."""
    over = [one - other for one, other in zip(taken, base, strict=True)]
    low, middle, high = statistics.quantiles(over, n=4)
    return {
        "subject": name,
        "us_a_step": statistics.median(taken),
        "over_bare_us": middle,
        "over_bare_quartiles_us": [low, high],
    }


def rows_of_optimizers(device: str, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Return a row per net and form of the optimizer. The base is `fused = false`."""
    rows = []
    for name, steppers in optimizers.subjects(device).items():
        taken = measure(steppers, rounds, steps)
        base = next(iter(taken.values()))
        rows += [row(f"{name}, {form}", each, base) for form, each in taken.items()]
    return rows


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizers", action="store_true")
    options = parser.parse_args()
    if options.rounds < _FEWEST_ROUNDS:
        parser.error(
            f"--rounds must be at least {_FEWEST_ROUNDS}: {options.rounds} has no quartiles"
        )
    torch.set_num_threads(options.threads)
    base = "`fused = false`" if options.optimizers else "bare"
    if options.optimizers:
        rows = rows_of_optimizers(options.device, options.rounds, options.steps)
    else:
        with tempfile.TemporaryDirectory() as directory:
            taken = measure(subjects(directory, options.device), options.rounds, options.steps)
        rows = [row(name, each, taken["bare loop"]) for name, each in taken.items()]
    print(f"| subject | us a step | over {base} | quartiles |\n|---|---|---|---|")
    for line in sorted(rows, key=lambda line: line["over_bare_us"]):
        low, high = line["over_bare_quartiles_us"]
        print(
            f"| {line['subject']} | {line['us_a_step']:.0f} | {line['over_bare_us']:+.0f} | "
            f"{low:+.0f} … {high:+.0f} |"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path of the caller
            content = {"machine": facts(), "device": options.device, "rows": rows}
            content["threads"] = options.threads
            json.dump(content, file, indent=2)


if __name__ == "__main__":
    main()
