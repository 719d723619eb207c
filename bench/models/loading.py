"""Seconds and memory to load a model of transformers, beside reading the bytes of its files.

    python bench/models/loading.py [--gib G] [--rounds N] [--dtype NAME] [--json PATH]

A Llama with random weights in bfloat16 is written to a temporary folder, in shards. Each round
measures every way in a process of its own, in an order that changes: reading the files in blocks of
8 MiB; reading them into memory that stays; a run of `hf:FOLDER` with resident weights; the same run
with layer-streaming; and `from_pretrained` of transformers. Before each, the files leave the page
cache. Seconds begin after the imports, and end when every page of the weights is in memory. Memory
is the peak of anonymous memory (`RssAnon`) minus what there was before and minus the weights; it is
negative where weights are pages of the files. Ratios are to reading in the same round.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from loads.figures import shown
from loads.files import cool, shards, write
from loads.memory import AnonymousPeak, have_memory
from torch import nn
from transformers import AutoModelForCausalLM

from neaptide import HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_toolkit.machine.facts import facts
from neaptide_toolkit.offload.pages import Pages, mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAYS = "reading", "reading, kept", "resident", "streamed", "transformers"
TINY = "tiny"
"""The folder of a model that each process loads first."""
_SETTINGS = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **os.environ}
"""The first is what `neaptide run` sets: threads that wait leave their cores to the kernel."""
_MIB, _GIB = 2**20, 2**30
_BLOCK = 8 * _MIB
_PAGE = mmap.PAGESIZE
_COLD = 0.01
"""The largest share of the files in the page cache of which one may say that it is cold."""


def read(folder: Path) -> None:
    """Read the files in blocks, and keep none."""
    block = memoryview(bytearray(_BLOCK))
    for path in shards(folder):
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


def kept(folder: Path) -> nn.Module:
    """Read the files in blocks into memory that stays."""
    model = nn.Module()
    for place, path in enumerate(shards(folder)):
        _, flat = mapped(path.stat().st_size, Pages)
        model.register_parameter(str(place), nn.Parameter(flat, requires_grad=False))
        room = memoryview(flat.numpy())
        with path.open("rb", buffering=0) as file:
            while room:
                room = room[file.readinto(room[:_BLOCK]) :]
    return model


def run(folder: Path, dtype: str, plugins: dict[str, Any]) -> HybridTrainer:
    """Build a run of the model by its name."""
    given = {
        "model": {"name": f"hf:{folder}", "options": {"dtype": dtype}},
        "train": {"device": "cpu"},
        "plugins": plugins,
    }
    return HybridTrainer.from_config(configured(given, ())[0])


def pretrained(folder: Path, dtype: str) -> nn.Module:
    """Load the model as transformers does."""
    told = "auto" if dtype == "saved" else dtype
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=told, use_cache=False)
    return model


def touched(loaded: nn.Module | HybridTrainer | None) -> int:
    """Have each page of the weights in memory; return their bytes."""
    if loaded is None:
        return 0
    held = 0
    for weight in (loaded.model if isinstance(loaded, HybridTrainer) else loaded).parameters():
        weight.detach().view(-1).view(torch.uint8)[::_PAGE].max()
        held += weight.nbytes
    return held


def one(way: str, folder: Path, dtype: str) -> dict[str, Any]:
    """Measure a way in this process."""
    ways: dict[str, Callable[[Path], nn.Module | HybridTrainer | None]] = {
        "reading": read,
        "reading, kept": kept,
        "resident": lambda path: run(path, dtype, {}),
        "streamed": lambda path: run(path, dtype, {"layer-streaming": {"resident": 0}}),
        "transformers": lambda path: pretrained(path, dtype),
    }
    touched(ways[way](folder / TINY))  # imports what is imported late
    have_memory(4 * sum(path.stat().st_size for path in shards(folder)))
    stayed = cool(folder)
    with AnonymousPeak() as memory:
        began = time.perf_counter()
        loaded = ways[way](folder)
        held = touched(loaded)
        took = time.perf_counter() - began
    return {"seconds": took, "beyond": memory.peak - memory.before - held, "stayed": stayed}


def rounds(folder: Path, count: int, dtype: str) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield what each way takes, round by round."""
    order, shuffle = [*WAYS], random.Random(0)  # noqa: S311 - random order, no secret
    for _ in range(count):
        shuffle.shuffle(order)
        found = {}
        for way in order:
            command = [sys.executable, __file__, "--way", way, str(folder), "--dtype", dtype]
            done = subprocess.run(  # noqa: S603 - ours
                command, stdout=subprocess.PIPE, text=True, check=True, env=_SETTINGS
            )
            found[way] = json.loads(done.stdout.splitlines()[-1])
        yield found


def row(way: str, found: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the figures of a way: one of each round."""
    seconds = [each[way]["seconds"] for each in found]
    return {
        "way": way,
        "seconds": seconds,
        "x_reading": [
            one / each["reading"]["seconds"] for one, each in zip(seconds, found, strict=True)
        ],
        "anonymous_beyond_weights": [each[way]["beyond"] for each in found],
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=2.0, help="the size of the files")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--dtype", default="saved", help="the dtype in memory; the files' by default"
    )
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(one(given.way[0], Path(given.way[1]), given.dtype)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        folder = Path(made)
        write(folder, given.gib)
        write(folder / TINY, 0.0)
        size = sum(path.stat().st_size for path in shards(folder))
        found = [*rounds(folder, given.rounds, given.dtype)]
    rows = [row(way, found) for way in WAYS]
    stayed = max(each[way]["stayed"] for each in found for way in WAYS)
    cold = (
        "cold" if stayed < _COLD else f"NOT COLD: up to {stayed:.0%} of the files stayed in memory"
    )
    cores = len(os.sched_getaffinity(0))
    print(f"{size / _GIB:.2f} GiB, {cores} cores, {given.rounds} rounds, page cache {cold}\n")
    print("| | seconds | x reading | anonymous MiB beyond the weights |\n|---|---|---|---|")
    for each in rows:
        beyond = [bytes_ / _MIB for bytes_ in each["anonymous_beyond_weights"]]
        seconds, ratio = shown(each["seconds"], ".2f"), shown(each["x_reading"], ".2f")
        print(f"| {each['way']} | {seconds} | {ratio} | {shown(beyond, ',.0f')} |")
    if given.json:
        report = {
            "machine": facts(),
            "bytes": size,
            "stayed_in_cache": stayed,
            "dtype": given.dtype,
            "rows": rows,
        }
        given.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
