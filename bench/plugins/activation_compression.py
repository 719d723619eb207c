"""Memory, time and gradient error of activation-compression, compared with a step without it.

    python bench/plugins/activation_compression.py [--json PATH] [--rounds N] [--device cuda]

The model is a stack of byte-GPT blocks. The script counts the bytes that torch's allocator holds at
the end of the forward and at the peak, without weights. The times cover forward and backward. Steps
with each group size and steps without compression are timed alternately.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_plugins.activation_compression.needs import NodeNeeds
from neaptide_plugins.activation_compression.saving import Saving
from neaptide_plugins.builtin_models.byte_gpt import VOCABULARY, build
from neaptide_plugins.builtin_models.config import ByteGptOptions
from neaptide_toolkit.gradient_error import compare
from neaptide_toolkit.testing.allocations import counted

if TYPE_CHECKING:
    from collections.abc import Callable

GROUPS = (64, 128, 256)
MIB = 2**20


@attrs.frozen(eq=False)
class Task:
    """A model in one precision, with one batch."""

    model: torch.nn.Module
    tokens: torch.Tensor
    targets: torch.Tensor
    autocast: bool

    def loss(self) -> torch.Tensor:
        """Return the mean cross-entropy. Dropout draws the same random numbers at each call."""
        torch.manual_seed(1)
        with torch.autocast(self.tokens.device.type, torch.bfloat16, enabled=self.autocast):
            logits = self.model(self.tokens)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), self.targets)

    def step(self, group: int | None, between: Callable[[], None] = lambda: None) -> Saving | None:
        """Run forward and backward.

        If `group` is given, activations are compressed in groups of `group` elements.
        """
        self.model.zero_grad()
        session = None if group is None else Saving(NodeNeeds(), group=group, min_elements=1024)
        with session.hooks() if session else nullcontext():
            loss = self.loss()
            if session:
                session.finish(loss)
        between()
        loss.backward()
        return session

    def gradients(self) -> list[torch.Tensor | None]:
        """Return copies of the parameters' gradients."""
        grads = (parameter.grad for parameter in self.model.parameters())
        return [None if grad is None else grad.clone() for grad in grads]


def bytes_of(task: Task, group: int | None) -> tuple[int, int]:
    """Return the bytes in use after the forward, and the peak bytes of forward and backward."""
    if task.tokens.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before, left = torch.cuda.memory_allocated(), []
        task.step(group, lambda: left.append(torch.cuda.memory_allocated()))
        return left[0] - before, torch.cuda.max_memory_allocated() - before
    with counted() as allocations:
        task.step(group, lambda: allocations.mark("forward"))
    return allocations.at_marks()["forward"][0], allocations.peak()


def seconds_of(task: Task, group: int | None) -> float:
    """Return the seconds of one step."""
    started = time.perf_counter()
    task.step(group)
    if task.tokens.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def rows_of(name: str, task: Task, rounds: int) -> list[dict[str, Any]]:
    """Measure one task with each group size and without compression."""
    subjects: tuple[int | None, ...] = (None, *GROUPS)
    errors, held = {}, {}
    task.step(None)
    exact = task.gradients()
    for group in subjects:
        task.step(group)
        errors[group] = compare(exact, task.gradients()).relative
        held[group] = bytes_of(task, group)
    times: dict[int | None, list[float]] = {group: [] for group in subjects}
    for _ in range(rounds):
        for group in subjects:
            times[group].append(seconds_of(task, group))
    rows = []
    for group in subjects:
        ratios = [one / other for one, other in zip(times[group], times[None], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        rows.append(
            {
                "task": name,
                "group": group,
                "held_bytes": held[group][0],
                "peak_bytes": held[group][1],
                "saved_share": 1 - held[group][0] / held[None][0],
                "gradient_error": errors[group],
                "time_ratio": middle,
                "time_ratio_quartiles": [low, high],
                "median_seconds": statistics.median(times[group]),
            }
        )
    return rows


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    low, high = row["time_ratio_quartiles"]
    return (
        f"| {row['task']} | {row['group'] or 'off'} | {row['held_bytes'] / MIB:.1f} | "
        f"{row['peak_bytes'] / MIB:.1f} | {row['saved_share']:.1%} | {row['gradient_error']:.2%} | "
        f"{row['time_ratio']:.2f} ({low:.2f}-{high:.2f}) |"
    )


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| task | group | held, MiB | peak, MiB | saved | gradient error | time |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for dropout in (0.0, 0.1):
        for precision in ("fp32", "bf16", "bf16 autocast"):
            torch.manual_seed(0)
            model = build(
                ByteGptOptions(
                    width=options.width,
                    layers=options.layers,
                    heads=4,
                    context=128,
                    dropout=dropout,
                )
            ).to(options.device, torch.bfloat16 if precision == "bf16" else torch.float32)
            tokens, targets = torch.randint(0, VOCABULARY, (2, 8, 128), device=options.device)
            task = Task(model, tokens, targets.flatten(), precision == "bf16 autocast")
            found = rows_of(f"{precision}, dropout {dropout}", task, options.rounds)
            print("\n".join(map(line, found)), flush=True)
            rows += found
    if options.json:
        facts = {
            "machine": platform.machine(),
            "torch": torch.__version__,
            "threads": 1,
            "device": options.device,
            "rounds": options.rounds,
        }
        text = json.dumps({**facts, "rows": rows}, indent=2)
        Path(options.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
