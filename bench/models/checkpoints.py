"""Seconds and memory to save and load weights and optimizer state, beside the disk and others.

    python bench/models/checkpoints.py [--gib G] [--rounds N] [--folder DIR] [--json PATH]

Layers with AdamW's state, in float32. Each round measures every way in a process of its own, in an
order that changes. Each save ends with fsync of all files. Before a load, the files leave the page
cache; the load ends in the weights and in the optimizer's state. `+ sha256`: what it takes to read
the files once more and compute their digests, which Neaptide does within both. Memory is the peak
of anonymous memory (`RssAnon`) minus what there was before. `disk` writes and reads the same number
of bytes past the page cache, and `sha256` hashes them on one core. The slower of both is a bound.
`background-save` and `its async_save` are the time until training goes on, at the second save, with
buffers for all; their memory is what they keep and take since before the first save. Before each
measurement the host of a virtual machine gives all memory that will be used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from loads.figures import shown
from loads.memory import AnonymousPeak, anonymous, have_memory
from saves.ways import WAYS, flat, size_of, state_of

from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MIB, _GIB = 2**20, 2**30


def files(folder: Path) -> list[Path]:
    """Return all files below `folder`."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def on_disk(folder: Path) -> None:
    """Flush every file and the folder."""
    for path in (*files(folder), folder):
        number = os.open(path, os.O_RDONLY)
        os.fsync(number)
        os.close(number)


def cool(folder: Path) -> None:
    """Let the files leave the page cache."""
    for path in files(folder):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def hashed(folder: Path) -> float:
    """Return the seconds to read all files and compute their digests."""
    began = time.perf_counter()
    for path in files(folder):
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
    return time.perf_counter() - began


def timed(work: Callable[[], object], size: int, before: int | None = None) -> dict[str, float]:
    """Return seconds and bytes of anonymous memory beyond `before`, or beyond what there is.

    `size` bytes are used once before: by the copies, and by the page cache.
    """
    have_memory(size)
    with AnonymousPeak() as memory:
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
    return {"seconds": took, "beyond": memory.peak - (before or memory.before)}


def one(name: str, folder: Path, gib: float) -> dict[str, Any]:
    """Measure a way in this process."""
    way, held = WAYS[name], state_of(gib)
    before = None if way.finish is None else anonymous()
    first = folder / "first"  # what is imported late
    first.mkdir()
    way.save(state_of(0.01) if way.finish is None else held, first)
    if way.finish is not None:
        way.finish()
    shutil.rmtree(first)
    size = 2 * size_of(held)

    def save() -> None:
        way.save(held, folder)
        if way.finish is None:
            on_disk(folder)

    os.sync()
    saved = timed(save, size, before)
    if way.finish is not None:
        way.finish()
    digests = hashed(folder)
    own = {name: tensor.clone() for name, tensor in flat(held).items()}
    with torch.no_grad():
        for tensor in flat(held).values():
            tensor.zero_()
    cool(folder)
    loaded = timed(lambda: way.load(held, folder), size)
    if name not in {"disk", "sha256"}:
        differ = [key for key, one in flat(held).items() if not torch.equal(one, own[key])]
        assert not differ, f"{name} loads other values than it saved: {differ}"
    cool(folder)
    return {"save": saved, "load": loaded, "digests": digests, "bytes": size_of(held)}


def rounds(folder: Path, count: int, gib: float) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield what each way takes, round by round."""
    order, shuffle = [*WAYS], random.Random(0)  # noqa: S311 - random order, no secret
    for _ in range(count):
        shuffle.shuffle(order)
        found = {}
        for name in order:
            with tempfile.TemporaryDirectory(dir=folder) as made:
                command = [sys.executable, __file__, "--way", name, made, "--gib", str(gib)]
                done = subprocess.run(  # noqa: S603 - ours
                    command, stdout=subprocess.PIPE, text=True, check=True
                )
            found[name] = json.loads(done.stdout.splitlines()[-1])
        yield found


def rows(found: list[dict[str, dict[str, Any]]], work: str) -> list[dict[str, Any]]:
    """Return the figures of every way, one value a round. `x_bound`: over the slower bound."""
    bounds = [max(each[name][work]["seconds"] for name in ("disk", "sha256")) for each in found]
    made = []
    for name in WAYS:
        seconds = [each[name][work]["seconds"] for each in found]
        later = work == "save" and WAYS[name].finish is not None  # so would be the digests
        checks = not later and name not in {"disk", "sha256", "neaptide", "background-save"}
        made.append(
            {
                "way": name,
                "seconds": seconds,
                "x_bound": [took / bound for took, bound in zip(seconds, bounds, strict=True)],
                "with_sha256": [
                    took + checks * each[name]["digests"]
                    for took, each in zip(seconds, found, strict=True)
                ],
                "beyond": [each[name][work]["beyond"] for each in found],
            }
        )
    return made


def table(work: str, found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {work} | seconds | x the slower bound | seconds + sha256 | MiB beyond |"
    yield "|---|---|---|---|---|"
    for row in found:
        beyond = shown([one / _MIB for one in row["beyond"]], ",.0f")
        cells = [shown(row[name], ".2f") for name in ("seconds", "x_bound", "with_sha256")]
        yield f"| {row['way']} | {' | '.join(cells)} | {beyond} |"


def main() -> None:
    """Measure, print two tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=3.0, help="weights and state together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the temporary folders are made")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(one(given.way[0], Path(given.way[1]), given.gib)))
        return
    found = [*rounds(given.folder, given.rounds, given.gib)]
    size = found[0]["disk"]["bytes"]
    print(f"{size / _GIB:.2f} GiB, {len(os.sched_getaffinity(0))} cores, {given.rounds} rounds")
    works = {work: rows(found, work) for work in ("save", "load")}
    for work, made in works.items():
        print("", *table(work, made), sep="\n")
    if given.json:
        report = {"machine": facts(), "bytes": size, **works}
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
