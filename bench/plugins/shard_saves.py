"""Measure how long a save of several processes takes, what its parts cost, and the memory it takes.

    python bench/plugins/shard_saves.py [--json PATH] [--processes N]
                                        [--layers N] [--width N] [--rounds N] [--rows N]

A byte-gpt with AdamW is saved in one process, and in `--processes` in stage 3 by all of them, or by
the first one: on the disk, and in RAM (/dev/shm). Beside it stand parts of that time, each measured
alone: to gather all tensors, and to compute the sha256 of as many bytes. `more` are the bytes by
which the memory of the first process was at most higher in a save than before it. Another way would
be a file for each process, with a sha256 of its own: measured too, on the disk.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch.distributed as dist
from shards import batches, trainer_of

from neaptide.checkpoint.files import HashedFile
from neaptide.checkpoint.safetensors_stream import resident, write_tensors
from neaptide.io.folder import Folder
from neaptide_toolkit.machine.facts import facts


def saving(given: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of a save, and of its parts; in another process, of its own parts."""
    first = given.processes == 1 or dist.get_rank() == 0
    taken: dict[str, list[float]] = {}
    with trainer_of(given, given.stage, saves=given.saves) as trainer:
        store, batch = trainer.store, batches(given)[0]

        def gather() -> None:
            for span in store.spans():
                with store.loan(span, "read"), store.lend_state(span, "read"):
                    pass

        def one(name: str, work: Any) -> None:
            """Let the first process work; the others send their rows at the next step."""
            if first:
                before, began = _most_bytes(reset=True), time.perf_counter()
                work()
                taken.setdefault(name, []).append(time.perf_counter() - began)
                if name.startswith("save"):
                    taken.setdefault("more", []).append(max(1, _most_bytes() - before))
            trainer.step(batch)

        trainer.step(batch)
        places = {"disk": Path(given.json).parent, "ram": Path("/dev/shm")}  # noqa: S108 - a measured place
        for _ in range(given.rounds):
            for name, place in places.items():
                target = place / "shards-saved"
                one(f"save_{name}", lambda to=target: trainer.save(to))
                if first:
                    saved = sum(each.stat().st_size for each in target.iterdir())
                    shutil.rmtree(target)
            one("gather", gather)
            if first:
                data = memoryview(bytes(saved))
                began = time.perf_counter()
                hashlib.sha256(data)
                taken.setdefault("sha256", []).append(time.perf_counter() - began)
                taken.setdefault("bytes", []).append(saved)
                del data
            taken.setdefault("own_rows", []).append(own_rows(given, store))
    return {name: statistics.median(each) for name, each in taken.items()}


def _most_bytes(*, reset: bool = False) -> int:
    """Return the most RAM that this process has had; from then on count anew if `reset`."""
    if reset:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def own_rows(given: argparse.Namespace, store: Any) -> float:
    """Return the seconds that all processes take to write their rows, each into one file."""
    rank = dist.get_rank() if given.processes > 1 else 0
    rows = {f"weight.{number}": each for number, each in enumerate(store.parameters.values())}
    for number, each in enumerate(store.parameters.values()):
        state = store.optimizer.state[each].items()
        rows |= {f"{key}.{number}": value for key, value in state if value.ndim}
    folder = Path(given.json).parent / "shards-rows"
    if given.processes > 1:
        dist.barrier()
    began = time.perf_counter()
    with closing(Folder(folder, make=True)) as place:
        with HashedFile(place, f"{rank}.safetensors") as file:
            write_tensors(file, [resident(*named) for named in rows.items()])
        file.entry()
    if given.processes > 1:
        dist.barrier()
    seconds = time.perf_counter() - began
    (folder / f"{rank}.safetensors").unlink()
    return seconds


def worker(given: argparse.Namespace) -> None:
    """Measure in this process; let the first write what it found."""
    if given.processes > 1:
        dist.init_process_group("gloo")
    found = saving(given)
    if given.processes > 1:
        dist.barrier()
        dist.destroy_process_group()
    if int(os.environ.get("RANK", "0")) == 0:
        Path(given.json).write_text(json.dumps(found), encoding="utf-8")


def measured(given: argparse.Namespace, processes: int, saves: str = "all") -> dict[str, float]:
    """Measure in new processes; return what the first found."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    part = Path(f"{given.json}.part")
    own = [f"--{name}={getattr(given, name)}" for name in ("layers", "width", "rows", "rounds")]
    command = [*(start if processes > 1 else []), __file__, f"--json={part}", *own]
    subprocess.run(  # noqa: S603 - this script
        [sys.executable, *command, "--measure", f"--processes={processes}", f"--saves={saves}"],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found: dict[str, float] = json.loads(part.read_text(encoding="utf-8"))
    part.unlink()
    return found


def main() -> None:
    """Measure in one process and in several, print the rows, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default="shard-saves.json")
    for name, default in (("layers", 8), ("width", 768), ("rows", 4), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--saves", default="all", help=argparse.SUPPRESS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.stage = 3 if given.processes > 1 else "replicate"
    if given.measure:
        worker(given)
        return
    report: dict[str, Any] = {"facts": facts()}
    for processes, saves in ((1, "all"), (given.processes, "all"), (given.processes, "first")):
        name = f"{processes}, the first writes" if saves == "first" else str(processes)
        report[name] = found = measured(given, processes, saves)
        print(name, ", ".join(f"{name} {value:.3g}" for name, value in found.items()))
    Path(given.json).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
