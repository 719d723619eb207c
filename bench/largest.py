"""The largest model that trains in a limit of memory, by ways to keep weights and state in RAM.

    python bench/largest.py [--gib G] [--ways NAMES] [--width N] [--json PATH]

A run builds the model that its config names, as `neaptide run` does: a number of blocks
`x + down(relu(up(x)))`; `up` has `width` rows of inputs and four times as many of outputs. Each
trial trains five steps in a process of its own, whose data (the `VmData` of Linux: heap and private
writable pages) may not exceed the limit (`RLIMIT_DATA`). The number of blocks is bisected. A
process that has imported torch and made a step of AdamW on one number has data, too: the table has
bytes of a parameter without them, and of the whole limit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neaptide import Data, HybridTrainer, Task
from neaptide.errors import DoesNotFitError
from neaptide.hooks.enabling import configured
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Iterator

Stepping = Callable[[torch.Tensor], Any]

STEPS, TOKENS = 5, 64
NO_MEMORY = 3
"""Exit status of a trial that had too little memory."""


class Block(nn.Module):
    """Two matrices around a ReLU, with a residual connection: `[T, W]` to `[T, W]`."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False, dtype=dtype)
        self.down = nn.Linear(4 * width, width, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        return x + self.down(torch.relu(self.up(x)))


def decoder(blocks: int, width: int, dtype: str) -> Task:
    """Return the model of a run."""
    model = nn.Sequential(*(Block(width, getattr(torch, dtype)) for _ in range(blocks)))
    return Task(model, loss_of)


def ones(blocks: int, width: int, dtype: str) -> Data:
    """Return the data of a run: always the same batch."""
    del blocks
    return Data([torch.ones(TOKENS, width, dtype=getattr(torch, dtype))])


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the outputs."""
    return model(batch).float().square().mean()


IN_BACKWARD = {"update": "in_backward", "clip": "none"}


def streamed(optimizer: str, **streaming: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what makes the config of a run with layer-streaming."""

    def settings(model: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": {"name": "largest:decoder", "options": model},
            "data": {"name": "largest:ones", "options": model},
            "optimizer": {"name": optimizer, "lr": 1e-3},
            "train": {"device": "cpu"},
            "plugins": {"layer-streaming": streaming},
        }

    return settings


def started(settings: dict[str, Any]) -> Stepping:
    """Begin a run; return its step."""
    given, _ = configured(settings, ())
    trainer = HybridTrainer.from_config(given)
    trainer.__enter__()
    return trainer.step


def by_hand(options: dict[str, Any]) -> Stepping:
    """Return the step of a loop with torch's hooks: an AdamW for each weight, in the backward."""
    model = decoder(**options).module

    def update(weight: torch.Tensor) -> None:
        optimizers[weight].step()
        weight.grad = None

    optimizers = {
        weight: torch.optim.AdamW([weight], lr=1e-3, fused=True) for weight in model.parameters()
    }
    for weight in optimizers:
        weight.register_post_accumulate_grad_hook(update)

    def step(batch: torch.Tensor) -> None:
        loss_of(model, batch).backward()

    return step


BY_HAND = "by hand, float32"
WAYS: dict[str, tuple[str, float, Callable[[dict[str, Any]], Any]]] = {
    BY_HAND: ("float32", 12, by_hand),
    "AdamW, float32": ("float32", 12, streamed("adamw", **IN_BACKWARD)),
    "AdamW, split masters": ("bfloat16", 12, streamed("adamw", master="split", **IN_BACKWARD)),
    "adam-mini, float32": ("float32", 8, streamed("adam-mini", **IN_BACKWARD)),
    "adam8bit, bfloat16": ("bfloat16", 4.03, streamed("adam8bit", **IN_BACKWARD)),
    "lion8bit, bfloat16": ("bfloat16", 3.02, streamed("lion8bit", **IN_BACKWARD)),
    "muon, bfloat16": ("bfloat16", 4, streamed("muon", **IN_BACKWARD)),
    "lion, bfloat16": ("bfloat16", 4, streamed("lion", **IN_BACKWARD)),
    "adafactor, bfloat16": ("bfloat16", 2.01, streamed("adafactor", **IN_BACKWARD)),
}
"""By name: the dtype of the weights, bytes of weight and state, and what makes a config, or a step
by hand."""


def trial(way: str, blocks: int, width: int, limit: int) -> None:
    """Train in this process; exit with NO_MEMORY if memory was too little."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    dtype, _, make = WAYS[way]
    try:
        made = make({"blocks": blocks, "width": width, "dtype": dtype})
        step = made if way == BY_HAND else started(made)
        for _ in range(STEPS):
            step(torch.ones(TOKENS, width, dtype=getattr(torch, dtype)))
    except (MemoryError, RuntimeError, SystemError, DoesNotFitError) as error:
        if type(error) is RuntimeError and "memory" not in str(error):
            raise
        os._exit(NO_MEMORY)  # without the end of the run, which may need memory
    os._exit(0)


def trains(way: str, blocks: int, given: argparse.Namespace) -> bool:
    """Return whether a model of so many blocks trains in the limit."""
    limit = str(int(given.gib * 2**30))
    command = [sys.executable, __file__, "--trial", way, str(blocks), str(given.width), limit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    # The loader and C++ end a process without memory by themselves, some by a signal.
    if done.returncode > 0 and done.returncode != NO_MEMORY:
        told = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        if "memory" not in told[0] and "alloc" not in told[0].lower():
            msg = f"{way} of {blocks} blocks failed: {told[0]}"
            raise SystemExit(msg)
    return done.returncode == 0


def largest(way: str, given: argparse.Namespace) -> int:
    """Return the largest number of blocks that trains."""
    low, high = 0, int(given.gib * 2**30 / WAYS[way][1] / (8 * given.width**2)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if trains(way, middle, given):
            low = middle
        else:
            high = middle
    return low


def without_a_model() -> int:
    """Return the data of a process that has made a step of AdamW on one number."""
    code = (
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(1))\n"
        "optimizer = torch.optim.AdamW([weight], fused=True)\n"
        "weight.sum().backward()\n"
        "optimizer.step()\n"
        "print(open('/proc/self/status').read())\n"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True)  # noqa: S603 - ours
    (line,) = (line for line in told.splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) << 10


def rows(given: argparse.Namespace, bare: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of each way."""
    limit = int(given.gib * 2**30)
    for way in given.ways.split(";"):
        blocks = largest(way, given)
        count = blocks * 8 * given.width**2
        yield {
            "way": way,
            "parameters": count,
            "stated": WAYS[way][1],
            "bytes": (limit - bare) / count if count else None,
            "of_the_limit": limit / count if count else None,
        }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=2.0, help="the limit of data")
    parser.add_argument("--ways", default=";".join(WAYS), help="names, with ; between them")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trial", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trial:
        way, blocks, width, limit = given.trial
        trial(way, int(blocks), int(width), int(limit))
    bare = without_a_model()
    print(f"limit {given.gib} GiB, without a model {bare >> 20} MiB\n")
    print("| | million parameters | bytes: stated | measured | of the whole limit |")
    print("|---|---|---|---|---|")
    found = []
    for row in rows(given, bare):
        found.append(row)
        figures = (f"{row[key]:.2f}" if row[key] else "none" for key in ("bytes", "of_the_limit"))
        shown = f"{row['way']} | {row['parameters'] / 1e6:.1f} | {row['stated']} | "
        print(f"| {shown}{' | '.join(figures)} |", flush=True)
    if given.json:
        report = {"machine": facts(), "gib": given.gib, "bare": bare, "rows": found}
        given.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
