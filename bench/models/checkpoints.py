"""Seconds and memory to save and load weights and optimizer state, beside the disk and others.

    python bench/models/checkpoints.py [--gib G] [--rounds N] [--folder DIR] [--json PATH]

Layers with AdamW's state, in float32. Each round measures every way in a process of its own, in an
order that changes. Each save ends with fsync of all files. Before a load, the files leave the page
cache; the load ends in the weights and in the optimizer's state. `+ sha256`: what it takes to read
the files once more and compute their digests, which Neaptide does within both. Memory is the peak
of anonymous memory (`RssAnon`) minus what there was before. `disk` writes and reads the same number
of bytes past the page cache, and `sha256` hashes them on one core. The slower of both is a bound.
`background-save` is the time until training goes on, at the second save, with buffers for all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch
import torch.distributed.checkpoint as dcp
from loads.memory import AnonymousPeak, have_memory
from safetensors.torch import load_file, save_file
from torch import nn

from neaptide import HybridTrainer
from neaptide.checkpoint.files import WAY
from neaptide_plugins.background_save.writing import BackgroundWriter
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MIB, _GIB = 2**20, 2**30
_BLOCK = 16 * _MIB
_LAYERS = 16


class State(Protocol):
    """What is saved: a model and its optimizer."""

    model: nn.Module
    optimizer: torch.optim.Optimizer


def state_of(gib: float) -> HybridTrainer:
    """Return layers with AdamW's state that take `gib` together, in float32."""
    width = max(64, round((gib * _GIB / 12 / _LAYERS) ** 0.5 / 64) * 64)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(_LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    trainer = HybridTrainer(model, optimizer, loss_fn=lambda net, batch: net(batch).square().mean())
    trainer.step(torch.randn(4, width))
    optimizer.zero_grad(set_to_none=True)
    return trainer


def tree(held: State) -> dict[str, Any]:
    """Return the state as torch's own functions take it."""
    return {"model": held.model.state_dict(), "optimizer": held.optimizer.state_dict()}


def flat(held: State) -> dict[str, torch.Tensor]:
    """Return the tensors by name, as safetensors takes them."""
    state = held.optimizer.state_dict()["state"]
    moments = {f"{number}.{name}": one for number, of in state.items() for name, one in of.items()}
    return {**held.model.state_dict(), **moments}


def load_into(held: State, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
    """Load as a script by hand does."""
    held.model.load_state_dict(model)
    held.optimizer.load_state_dict(optimizer)


def by_torch(held: State, folder: Path) -> None:
    """torch.load, then both `load_state_dict`."""
    load_into(held, **torch.load(folder / "state.pt"))


def by_safetensors(held: State, folder: Path) -> None:
    """safetensors' load_file, then both `load_state_dict`."""
    tensors = load_file(folder / "state.safetensors")
    model = {name: tensors.pop(name) for name in held.model.state_dict()}
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, one in tensors.items():
        number, key = name.split(".")
        state.setdefault(int(number), {})[key] = one
    groups = held.optimizer.state_dict()["param_groups"]
    load_into(held, model, {"state": state, "param_groups": groups})


def by_dcp(held: State, folder: Path) -> None:
    """torch.distributed.checkpoint, which reads into the tensors that are there."""
    state = tree(held)
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    held.optimizer.load_state_dict(state["optimizer"])


def save_by_dcp(held: State, folder: Path) -> None:
    """torch.distributed.checkpoint; its writer calls fsync."""
    dcp.save(tree(held), checkpoint_id=folder, no_dist=True)


def block() -> torch.Tensor:
    """Return page-aligned bytes that no disk compresses."""
    memory = torch.frombuffer(mmap.mmap(-1, _BLOCK), dtype=torch.uint8)
    return memory.random_(0, 256)


def write_plainly(held: State, folder: Path) -> None:
    """Write as many bytes as the state has past the page cache."""
    data = memoryview(block().numpy())
    number = os.open(folder / "bytes", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    for _ in range(size_of(held) // _BLOCK):
        os.write(number, data)
    os.close(number)


def read_plainly(_: State, folder: Path) -> None:
    """Read them past the page cache."""
    data = memoryview(block().numpy())
    number = os.open(folder / "bytes", os.O_RDONLY | os.O_DIRECT)
    while os.readv(number, [data]):
        pass
    os.close(number)


def hash_plainly(held: State, _: Path) -> None:
    """Compute the sha256 of as many bytes."""
    data, digest = memoryview(block().numpy()), hashlib.sha256()
    for _number in range(size_of(held) // _BLOCK):
        digest.update(data)


def size_of(held: State) -> int:
    """Return the bytes of weights and state."""
    return sum(one.nbytes for one in flat(held).values())


@attrs.frozen
class Way:
    """One way to save to a folder and to load from it."""

    save: Callable[[Any, Path], object]
    load: Callable[[Any, Path], object]
    finish: Callable[[], object] | None = None
    """Ends a save that went on after `save` had returned."""


WRITER = BackgroundWriter(8 * _GIB)


def save_in_background(held: Any, folder: Path) -> None:
    """Save as the plugin does; return when training goes on."""
    token = WAY.set(lambda _, context, fill: WRITER.write(context, fill))
    try:
        held.save(folder / "saved")
    finally:
        WAY.reset(token)


def load_saved(held: Any, folder: Path) -> None:
    """Load what `trainer.save` wrote."""
    held.load(folder / "saved")


WAYS = {
    "disk": Way(write_plainly, read_plainly),
    "sha256": Way(hash_plainly, hash_plainly),
    "neaptide": Way(lambda held, path: held.save(path / "saved"), load_saved),
    "background-save": Way(save_in_background, load_saved, WRITER.finish),
    "torch.save": Way(lambda held, path: torch.save(tree(held), path / "state.pt"), by_torch),
    "safetensors": Way(
        lambda held, path: save_file(flat(held), path / "state.safetensors"), by_safetensors
    ),
    "torch.distributed.checkpoint": Way(save_by_dcp, by_dcp),
}


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


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Return seconds and bytes of anonymous memory beyond what there was."""
    with AnonymousPeak() as memory:
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
    return {"seconds": took, "beyond": memory.peak - memory.before}


def one(name: str, folder: Path, gib: float) -> dict[str, Any]:
    """Measure a way in this process."""
    way, held = WAYS[name], state_of(gib)
    first = folder / "first"  # what is imported late
    first.mkdir()
    way.save(state_of(0.01) if way.finish is None else held, first)
    if way.finish is not None:
        way.finish()
    have_memory(2 * size_of(held))

    def save() -> None:
        way.save(held, folder)
        if way.finish is None:
            on_disk(folder)

    os.sync()
    saved = timed(save)
    if way.finish is not None:
        way.finish()
    digests = hashed(folder)
    before = {name: tensor.clone() for name, tensor in flat(held).items()}
    with torch.no_grad():
        for tensor in flat(held).values():
            tensor.zero_()
    cool(folder)
    loaded = timed(lambda: way.load(held, folder))
    if name not in {"disk", "sha256"}:
        differ = [key for key, one in flat(held).items() if not torch.equal(one, before[key])]
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
        checks = name not in {"disk", "sha256", "neaptide", "background-save"}
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


def shown(values: list[float], form: str) -> str:
    """Return the median, the lowest and the highest."""
    low, middle, high = (
        format(each, form) for each in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} ({low} to {high})"


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
