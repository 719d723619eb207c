"""Seconds and memory to load a model of transformers, beside reading the bytes of its files.

    python bench/models/loading.py [--gib G] [--rounds N] [--dtype NAME] [--json PATH]

A Llama with random weights in bfloat16 is written to a temporary folder, in shards. Each round
measures every way in a process of its own, in an order that changes: reading the files in blocks
of 8 MiB; a run of `hf:FOLDER` with resident weights; the same run with layer-streaming; and
`from_pretrained` of transformers. Before each, the files leave the page cache. Seconds begin after
the imports, and end when every page of the weights is in memory. Memory is the peak of anonymous
memory (`RssAnon`) minus what there was before and minus the weights; it is negative where weights
are pages of the files. Ratios are to reading in the same round.
"""

from __future__ import annotations

import argparse
import ctypes
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
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from neaptide import HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

WAYS = "reading", "resident", "streamed", "transformers"
TINY = "tiny"
"""The folder of a model that each process loads first."""
_MIB, _GIB = 2**20, 2**30
_BLOCK = 8 * _MIB
_PAGE = mmap.PAGESIZE
_LAYERS = 16
_SHARDS = 4
_COLD = 0.01
"""The largest share of the files in the page cache of which one may say that it is cold."""


def width_of(gib: float) -> int:
    """Return the width at which the decoder layers take about `gib` in bfloat16."""
    return max(64, round((gib * _GIB / 2 / _LAYERS / 12) ** 0.5 / 64) * 64)


def write(folder: Path, gib: float) -> None:
    """Write a Llama with random weights in bfloat16, one shard at a time."""
    width = width_of(gib)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=_LAYERS,
        num_attention_heads=width // 64,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        tie_word_embeddings=False,
    )
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: one.shape for name, one in LlamaForCausalLM(config).state_dict().items()}
    torch.manual_seed(0)
    names = [*shapes]
    each = -(-len(names) // _SHARDS)
    placed, total = {}, 0
    for number in range(_SHARDS):
        file = f"model-{number + 1:05d}-of-{_SHARDS:05d}.safetensors"
        shard = {
            name: torch.empty(shapes[name], dtype=torch.bfloat16).normal_(std=0.02)
            for name in names[number * each : (number + 1) * each]
        }
        save_file(shard, folder / file, metadata={"format": "pt"})
        placed |= dict.fromkeys(shard, file)
        total += sum(one.nbytes for one in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def shards(folder: Path) -> list[Path]:
    """Return the files of weights."""
    return sorted(folder.glob("*.safetensors"))


def cool(folder: Path) -> float:
    """Let the files leave the page cache; return the share of their pages that stays."""
    kept = pages = 0
    for path in shards(folder):
        with path.open("rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
                seen = (ctypes.c_ubyte * (-(-len(mapped) // _PAGE)))()
                place = ctypes.c_char.from_buffer(mapped)
                length = ctypes.c_size_t(len(mapped))
                if ctypes.CDLL(None, use_errno=True).mincore(ctypes.byref(place), length, seen):
                    raise OSError(ctypes.get_errno(), "mincore")
                del place
            kept += sum(one & 1 for one in seen)
            pages += len(seen)
    return kept / pages


class AnonymousPeak:
    """Samples the anonymous memory of the process in a thread of its own."""

    def __init__(self) -> None:
        self.before = self.peak = anonymous()
        self._ended = Event()
        self._thread = Thread(target=self._sample)

    def _sample(self) -> None:
        while not self._ended.wait(0.002):
            self.peak = max(self.peak, anonymous())

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._ended.set()
        self._thread.join()
        self.peak = max(self.peak, anonymous())


def anonymous() -> int:
    """Return the bytes of anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("RssAnon")


def read(folder: Path) -> None:
    """Read the files in blocks, and keep none."""
    block = memoryview(bytearray(_BLOCK))
    for path in shards(folder):
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


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
        "resident": lambda path: run(path, dtype, {}),
        "streamed": lambda path: run(path, dtype, {"layer-streaming": {"resident": 0}}),
        "transformers": lambda path: pretrained(path, dtype),
    }
    touched(ways[way](folder / TINY))  # imports what is imported late
    _have_memory(2 * sum(path.stat().st_size for path in shards(folder)))
    stayed = cool(folder)
    with AnonymousPeak() as memory:
        began = time.perf_counter()
        loaded = ways[way](folder)
        held = touched(loaded)
        took = time.perf_counter() - began
    return {"seconds": took, "beyond": memory.peak - memory.before - held, "stayed": stayed}


def _have_memory(size: int) -> None:
    """Use memory once. A virtual machine then need not get it from its host while it is timed."""
    with mmap.mmap(-1, size) as room:
        for start in range(0, size, _PAGE):
            room[start] = 1


def rounds(folder: Path, count: int, dtype: str) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield what each way takes, round by round."""
    order, shuffle = [*WAYS], random.Random(0)  # noqa: S311 - random order, no secret
    for _ in range(count):
        shuffle.shuffle(order)
        found = {}
        for way in order:
            command = [sys.executable, __file__, "--way", way, str(folder), "--dtype", dtype]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - ours
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


def shown(values: list[float], form: str) -> str:
    """Return the median, the lowest and the highest."""
    low, middle, high = (
        format(one, form) for one in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} ({low} to {high})"


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
        print(
            f"| {each['way']} | {shown(each['seconds'], '.2f')} | {shown(each['x_reading'], '.2f')} | {shown(beyond, ',.0f')} |"
        )
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
