"""Seconds and bytes written by checkpoints of the disk tier: cloned from its file, and written.

    python bench/runs/clones.py FOLDER [--width N] [--blocks N] [--rounds N] [--json PATH]

FOLDER is on a file system with clones, such as an XFS. All weights and AdamW's state of the blocks
are in the tier's file there, and so are the checkpoints. Each round saves in both ways, in an order
that changes, and makes two updates after each save: the first one writes every block of the tier's
file to new blocks if these were cloned. Bytes are what Linux counts for this process (`write_bytes`
of /proc/self/io); they are of the save alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neaptide import HybridTrainer
from neaptide.checkpoint.files import WAY
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Iterator

_MIB = 2**20
WAYS = ("cloned", "written")
UPDATES = ("first_update", "second_update")


def trainer_of(folder: Path, width: int, blocks: int) -> HybridTrainer:
    """Return blocks whose weights and state are in a file below `folder`."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(blocks)]
    model = nn.Sequential(nn.Linear(width, width), *layers)
    tier = {"tier": "disk", "path": str(folder), "ram_gib": 0.0, "endurance_days": 0.0}
    return HybridTrainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-4),
        loss_fn=lambda net, batch: net(batch).square().mean(),
        config={"plugins": {"layer-streaming": {"update": "in_backward", **tier}}},
    )


@contextmanager
def saved_by(way: str) -> Iterator[None]:
    """Within this context the tier clones, or leaves the save to a way that only writes."""

    def write(_: Any, context: Any, fill: Any) -> None:
        with context as writer:
            fill(writer)

    if way == "cloned":
        yield
        return
    token = WAY.set(write)
    try:
        yield
    finally:
        WAY.reset(token)


def written() -> int:
    """Return the bytes that this process has had written."""
    (count,) = re.findall(
        r"^write_bytes: (\d+)", Path("/proc/self/io").read_text("ascii"), re.MULTILINE
    )
    return int(count)


def shown(values: list[float], form: str) -> str:
    """Return the median, the lowest and the highest."""
    low, middle, high = (
        format(each, form) for each in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} ({low} to {high})"


def timed(work: Any) -> float:
    """Return seconds, after what was written before is on the disk."""
    os.sync()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def one(trainer: HybridTrainer, batch: torch.Tensor, way: str, folder: Path) -> dict[str, float]:
    """Save, and make two updates."""
    os.sync()
    before = written()
    with saved_by(way):
        seconds = timed(lambda: trainer.save(folder / "saved"))
    count = written() - before
    first, second = (timed(lambda: trainer.step(batch)) for _ in range(2))
    shutil.rmtree(folder / "saved")
    return {"seconds": seconds, "bytes": count, "first_update": first, "second_update": second}


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as made,
        trainer_of(Path(made), given.width, given.blocks) as trainer,
    ):
        batch = torch.randn(8, given.width)
        for _ in range(3):
            trainer.step(batch)
        for number in range(given.rounds):
            for way in WAYS[:: 1 if number % 2 else -1]:
                rounds[way].append(one(trainer, batch, way, Path(made)))
    print("| checkpoint | s | MiB written | s of the next update | s of the one after |")
    print("|---|---|---|---|---|")
    for way, found in rounds.items():
        cells = [shown([each["seconds"] for each in found], ".2f")]
        cells += [shown([each["bytes"] / _MIB for each in found], ",.0f")]
        cells += [shown([each[name] for each in found], ".2f") for name in UPDATES]
        print(f"| {way} | {' | '.join(cells)} |")
    if given.json:
        report = {"machine": facts(), "rounds": rounds}
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
