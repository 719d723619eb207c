"""Time that the trainer and each plugin add to a step of a bare PyTorch loop.

    python bench/plugins/plugin_cost.py [--json PATH] [--rounds N] [--device cuda]

The task is the task of `check_plugin`. It has a few thousand parameters, so nearly all of a step is
bookkeeping. The bare loop and the trainers run alternately in one process. The figures are
microseconds per step. Compare them with the time of a step of your model. A plugin that needs a
predictor is measured together with `predictor-drift`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from neaptide import HybridTrainer, NeaptideError
from neaptide.hooks.registry import installed_plugins
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide_toolkit.testing.tiny import TinyTask

STEPS = 50
SETTINGS: dict[str, dict[str, Any]] = {
    "activation-checkpointing": {"interval": 2},
    "gradient-accumulation": {"steps": 2},
    "low-precision-backward": {"even_if_slower": True},
    "mixed-precision": {"full": "bf16"},
}


def task_on(device: str) -> TinyTask:
    """Return the task with its model and batches on the device."""
    task = tiny_task()
    task.model.to(device)
    for batch in task.batches:
        batch.update({name: value.to(device) for name, value in batch.items()})
    return task


def bare(device: str) -> Callable[[Any], None]:
    """Return one step of a plain PyTorch loop."""
    task = task_on(device)

    def step(batch: Any) -> None:
        loss = tiny_loss(task.model, batch)
        (loss.sum / loss.count).backward()
        task.optimizer.step()
        task.optimizer.zero_grad()

    return step


def trained(config: dict[str, Any], device: str) -> Callable[[Any], object]:
    """Return the method `step` of a trainer with `config`."""
    task = task_on(device)
    train = {"device": device, **config.get("train", {})}
    config = {"phases": {"warmup": {"steps": 0}}, **config, "train": train}
    trainer = HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config)
    return trainer.step


def every_subject(device: str) -> tuple[dict[str, Callable[[Any], object]], dict[str, str]]:
    """Return a step of each subject, and why plugins are left out: a package is not installed."""
    subjects: dict[str, Callable[[Any], object]] = {
        "bare loop": bare(device),
        "trainer": trained({}, device),
        "trainer, check_finite off": trained({"train": {"check_finite": False}}, device),
    }
    left_out: dict[str, str] = {}
    for name, spec in installed_plugins().usable().items():
        if not spec.schemes and spec.load.startswith("neaptide_plugins."):
            plugins = {name: SETTINGS.get(name, {})}
            beside = {"predictor-drift": {}} if "predictor" in spec.requires else {}
            shown = " + ".join(["trainer", name, *beside])
            try:
                subjects[shown] = trained({"plugins": {**plugins, **beside}}, device)
            except NeaptideError as error:
                if "is not installed" not in str(error):
                    raise
                left_out[name] = str(error)
                print(f"{name} is left out: {error}")
    return subjects, left_out


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    device: str = options.device
    torch.set_num_threads(1)
    batches = task_on(device).batches
    subjects, left_out = every_subject(device)
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(options.rounds):
        for name, step in subjects.items():
            started = time.perf_counter()
            for index in range(STEPS):
                step(batches[index % len(batches)])
            if device == "cuda":
                torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - started) / STEPS)
    rows = [row(name, measured, seconds["bare loop"]) for name, measured in seconds.items()]
    print("| subject | us a step | quartiles | over bare |\n|---|---|---|---|")
    for line in rows:
        low, high = line["quartiles_us"]
        print(
            f"| {line['subject']} | {line['median_us']:.0f} | {low:.0f}-{high:.0f} | "
            f"{line['over_bare_us']:+.0f} |"
        )
    if options.json:
        machine = {"machine": platform.machine(), "torch": torch.__version__, "threads": 1}
        machine["device"] = device
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path of the caller
            json.dump({**machine, "left_out": left_out, "rows": rows}, file, indent=2)


def row(name: str, measured: list[float], base: list[float]) -> dict[str, Any]:
    """Return, in microseconds, the median, the quartiles, and the difference from the bare loop."""
    low, middle, high = statistics.quantiles(measured, n=4)
    over = statistics.median(one - other for one, other in zip(measured, base, strict=True))
    return {
        "subject": name,
        "median_us": middle * 1e6,
        "quartiles_us": [low * 1e6, high * 1e6],
        "over_bare_us": over * 1e6,
    }


if __name__ == "__main__":
    main()
