"""Updates in RAM beside a plain copy: how much of the memory's speed each one gets.

    python bench/plugins/host_steps.py [--matrices N] [--side N] [--rounds N] [--threads N]
        [--json PATH]

Every optimizer has its own matrices of one size. A round has one update by each, in an order that
changes, and before each of them a copy of tensors that reads and writes as many bytes as AdamW in
float32. The first two rounds are not counted: they compile, build and check. Bytes are what an
update must at least read and write: weights and state both ways, and gradients. The share is bytes
a second, divided by those of the copy just before; medians, with the lowest and the highest. The
last column divides those of the quickest update by those of the quickest copy: other programs
disturb both less. With `--threads 1` the clock is the thread's own, which stands still while other
programs have its core. A library that is not installed is left out, and a line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_kernels.adamw_split import adamw_split_step
from neaptide_kernels.adamw_split.split_master import split
from neaptide_plugins.adam8bit.optimizer import Adam8bit
from neaptide_plugins.lion.optimizer import Lion
from neaptide_plugins.lion8bit.optimizer import Lion8bit
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable

_UNCOUNTED = 2
_WHOLE, _HALF = torch.float32, torch.bfloat16
_CODES, _SCALE = 1, 4 / 256
"""Bytes of a code, and of a scale for each of the 256 codes that share it."""


@attrs.frozen(kw_only=True)
class Way:
    """An update, the dtype of the weights, and the bytes of a parameter's state."""

    name: str
    weights: torch.dtype
    state: float
    build: Callable[[list[torch.nn.Parameter]], Callable[[], object]]
    gradients: torch.dtype | None = None
    """None: the dtype of the weights."""

    @property
    def bytes(self) -> float:
        """Bytes that an update of a parameter reads and writes."""
        gradients = self.gradients or self.weights
        return 2 * (self.weights.itemsize + self.state) + gradients.itemsize


class AbsentLibrary(Exception):  # noqa: N818 - no error: a library may be missing
    """The reason why a library cannot be timed."""


def stepping(
    make: Callable[..., torch.optim.Optimizer], params: list[torch.nn.Parameter]
) -> Callable[[], object]:
    """Return the step of an optimizer."""
    optimizer = make(params, lr=1e-3)
    return lambda: optimizer.step()  # noqa: PLW0108 - mypy needs the lambda


def of_library(
    module: str, name: str, options: dict[str, Any], params: list[torch.nn.Parameter]
) -> Callable[[], object]:
    """Return the step of an optimizer of a library; AbsentLibrary if it cannot be imported."""
    try:
        make = getattr(import_module(module), name)
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        msg = f"{module.partition('.')[0]} cannot be used ({reason})"
        raise AbsentLibrary(msg) from error
    return stepping(partial(make, **options), params)


def of_split_masters(*, fused: bool) -> Callable[..., Callable[[], object]]:
    """Return what builds the step of AdamW on split masters."""

    def build(params: list[torch.nn.Parameter]) -> Callable[[], object]:
        pairs = [split(param.detach().float()) for param in params]
        moments = [[torch.zeros(param.shape) for param in params] for _ in range(2)]
        hi, lo = ([pair[place] for pair in pairs] for place in range(2))
        grads = [param.grad for param in params if param.grad is not None]
        rate, count = torch.tensor(1e-3, dtype=torch.float64), torch.tensor(3.0)
        options = (0.9, 0.999, 1e-8, 1e-2, False, fused)
        return lambda: adamw_split_step(hi, lo, *moments, grads, rate, count, *options)

    return build


_BNB, _AO, _DEEPSPEED = "bitsandbytes.optim", "torchao.optim", "deepspeed.ops.adam"
_ADAM8, _LION8 = 2 * (_CODES + _SCALE), _CODES + _SCALE
_FUSED = partial(stepping, partial(torch.optim.AdamW, fused=True))
_DS_NAME = "DeepSpeedCPUAdam"


def ways() -> list[Way]:
    """Return the updates that are measured."""
    found = [
        Way(name="AdamW of torch, fused", weights=_WHOLE, state=8, build=_FUSED),
        # The lower halves of the masters are state.
        Way(
            name="AdamW, split masters, as torch's fused",
            weights=_HALF,
            state=10,
            build=of_split_masters(fused=True),
        ),
        Way(
            name="AdamW, split masters, as torch's for-loop",
            weights=_HALF,
            state=10,
            build=of_split_masters(fused=False),
        ),
    ]
    for dtype in (_WHOLE, _HALF):
        found += [
            Way(name="adam8bit", weights=dtype, state=_ADAM8, build=partial(stepping, Adam8bit)),
            Way(name="lion8bit", weights=dtype, state=_LION8, build=partial(stepping, Lion8bit)),
            Way(name="lion", weights=dtype, state=dtype.itemsize, build=partial(stepping, Lion)),
        ]
    for name, module, kind, state, dtype, options in (
        ("DeepSpeed CPUAdam", _DEEPSPEED, _DS_NAME, 8, _WHOLE, {}),
        ("DeepSpeed CPUAdam", _DEEPSPEED, _DS_NAME, 8, _HALF, {"fp32_optimizer_states": True}),
        ("bitsandbytes AdamW32bit", _BNB, "AdamW32bit", 8, _WHOLE, {}),
        ("bitsandbytes AdamW8bit", _BNB, "AdamW8bit", _ADAM8, _WHOLE, {}),
        ("bitsandbytes AdamW8bit", _BNB, "AdamW8bit", _ADAM8, _HALF, {}),
        ("bitsandbytes Lion8bit", _BNB, "Lion8bit", _LION8, _WHOLE, {}),
        ("torchao AdamW8bit", _AO, "AdamW8bit", _ADAM8, _WHOLE, {}),
        ("torchao AdamW8bit", _AO, "AdamW8bit", _ADAM8, _HALF, {"bf16_stochastic_round": True}),
    ):
        build = partial(of_library, module, kind, options)
        found.append(Way(name=name, weights=dtype, state=state, build=build))
    return found


def parameters(dtype: torch.dtype, options: argparse.Namespace) -> list[torch.nn.Parameter]:
    """Return matrices that have gradients of the same dtype."""
    draw = torch.Generator().manual_seed(0)
    made = []
    for _ in range(options.matrices):
        values = torch.randn(options.side, options.side, generator=draw)
        param = torch.nn.Parameter(values.to(dtype))
        param.grad = values.mul(1e-2).to(dtype)
        made.append(param)
    return made


def milliseconds(action: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the time of one call."""
    started = clock()
    action()
    return (clock() - started) * 1e3


def spread(values: list[float], form: str) -> str:
    """Return the median, the lowest and the highest."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}} ({low:{form}} to {high:{form}})"


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time every update beside a copy; return a row for each."""
    count = options.matrices * options.side**2
    source = torch.ones(7, count // 2)
    target = torch.zeros_like(source)
    built: list[tuple[Way, Callable[[], object]]] = []
    absent: dict[str, None] = {}
    for way in ways():
        try:
            built.append((way, way.build(parameters(way.weights, options))))
        except AbsentLibrary as reason:
            absent[str(reason)] = None
    for reason in absent:
        print(f"left out: {reason}")
    taken: list[tuple[list[float], list[float]]] = [([], []) for _ in built]
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    shuffle = random.Random(0)  # noqa: S311 - an order, no secret
    for number in range(_UNCOUNTED + options.rounds):
        for place in shuffle.sample(range(len(built)), len(built)):
            copy = milliseconds(lambda: target.copy_(source), clock)
            update = milliseconds(built[place][1], clock)
            if number >= _UNCOUNTED:
                taken[place][0].append(update)
                taken[place][1].append(copy)
    rate = 2 * source.nbytes
    quickest = min(copy for _, copies in taken for copy in copies)
    rows = []
    for (way, _), (updates, copies) in zip(built, taken, strict=True):
        moved = way.bytes * count
        pairs = list(zip(updates, copies, strict=True))
        rows.append(
            {
                "update": way.name,
                "weights": str(way.weights).removeprefix("torch."),
                "bytes": round(way.bytes, 2),
                "ms": updates,
                "copy_ms": copies,
                "gb_per_s": [moved / update / 1e6 for update in updates],
                "share": [moved / update / (rate / copy) for update, copy in pairs],
                "share_of_quickest": moved / min(updates) / (rate / quickest),
            }
        )
    return rows


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--matrices", type=int, default=10)
    parser.add_argument("--side", type=int, default=1024, help="rows and columns of a matrix")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = measured(options)
    moved = 28e-6 * options.matrices * options.side**2
    copies = [moved / ms for row in rows for ms in row["copy_ms"]]
    print(f"copy: {spread(copies, '.1f')} GB/s, on {options.threads} threads\n")
    print("| update | weights | bytes | ms | GB/s | share of a copy | of the quickest |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        times = f"{spread(row['ms'], '.1f')} | {spread(row['gb_per_s'], '.1f')}"
        share = f"{spread(row['share'], '.2f')} | {row['share_of_quickest']:.2f}"
        kind = row["weights"]
        print(f"| {row['update']} | {kind} | {row['bytes']:.2f} | {times} | {share} |")
    if options.json:
        count = options.matrices * options.side**2
        report = {"machine": facts(), "threads": options.threads, "parameters": count, "rows": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
