"""Train a model whose weights and state are four times the memory, beside the same run in RAM.

    python bench/runs/beyond_ram.py [--folder DIR] [--blocks N] [--width N] [--json PATH]

The model has blocks as in `bench/largest.py`, and float32 AdamW. Each trial is a process of its
own. `resident` trains without streaming and `ram` streams from RAM, both without limit. `disk`
streams from a file below --folder, and the data that the process adds (heap and private writable
pages, `RLIMIT_DATA`) may not exceed a quarter of weights and state. All must have the same losses
and the same weights, to the bit.

`alone` reads and writes a region of 1 GiB by the tier's own code while nothing computes. `fio`,
where it is installed, does so with requests of 16 MiB and O_DIRECT, four at once, which read and
write in the proportion of a step. A step cannot be shorter than its compute (a resident step) or
than its bytes at such a rate. The greater of the two, divided by the time of the step, is the share
that was reached. It is above 1 beside a program that uses the disk less well.

With --deepspeed, DeepSpeed's NVMe offload trains the same model in the same rounds, without limit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_model, save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from largest import TOKENS, decoder, loss_of
from streaming_ways import deepspeed_nvme

from neaptide import HybridTrainer
from neaptide_toolkit.machine.facts import facts
from neaptide_toolkit.offload import Slab
from neaptide_toolkit.offload.disk import TierFile, Transfers, copy

BYTES = 12
"""Bytes of a parameter: weight and two moments, float32."""
READ, WRITTEN = 16, 12
"""Bytes of a parameter in a step: the weight is read twice and the state once, both written."""
PIECE = 16 << 20
LIMITED, RIVAL = "disk", "DeepSpeed"
STREAMED = {"update": "in_backward", "clip": "none", "resident": 0}


def build(way: str, given: argparse.Namespace, file: Path) -> HybridTrainer:
    """Return a trainer of the model with the weights of `file`."""
    with torch.device("cpu" if way == "resident" else "meta"):
        model = decoder(given.blocks, given.width, "float32").module
    plugins: dict[str, Any] = {}
    if way == "resident":
        load_model(model, file)
    else:
        streaming = STREAMED | {"weights": str(file)}
        if way == LIMITED:
            streaming |= {"tier": "disk", "path": str(given.folder), "ram_gib": 0.0}
        plugins = {"layer-streaming": streaming}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    config = {"train": {"device": "cpu"}, "plugins": plugins}
    return HybridTrainer(model, optimizer, loss_fn=loss_of, config=config)


def trial(way: str, given: argparse.Namespace, file: Path) -> dict[str, Any]:
    """Train in this process; return losses, a digest of the weights, and seconds of each step."""
    before, resident = _status("VmData"), _status("RssAnon")
    if way == RIVAL:
        return _rival(given, resident)
    if way == LIMITED:
        limit = before + given.blocks * 8 * given.width**2 * BYTES // 4
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.set_num_threads(given.threads)
    generator = torch.Generator().manual_seed(1)
    seconds, losses = [], []
    with build(way, given, file) as trainer:
        for _ in range(given.steps):
            batch = torch.randn(TOKENS, given.width, generator=generator)
            start = time.perf_counter()
            losses.append(trainer.step(batch).loss)
            seconds.append(time.perf_counter() - start)
        anonymous = _status("RssAnon")
        digest = hashlib.sha256()
        for span in trainer.store.spans():
            with trainer.store.loan(span, "read") as weight:
                digest.update(weight.contiguous().view(torch.uint8).numpy())
    return {
        "losses": losses,
        "digest": digest.hexdigest(),
        "seconds": seconds[2:],
        "anonymous": anonymous - resident,
        "data": _status("VmData") - before,
    }


def _rival(given: argparse.Namespace, resident: int) -> dict[str, Any]:
    torch.set_num_threads(given.threads)
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(TOKENS, given.width, generator=generator) for _ in range(given.steps)]
    seconds = deepspeed_nvme.seconds_of_steps(
        lambda: decoder(given.blocks, given.width, "float32").module,
        loss_of,
        batches,
        given.folder,
        given.width,
    )
    return {"seconds": seconds[2:], "anonymous": _status("RssAnon") - resident}


def alone(folder: Path) -> dict[str, float]:
    """Return the bytes/s at which the tier reads and writes 1 GiB: the median of three."""
    size = 1 << 30
    transfers = Transfers(torch.device("cpu"))
    flat, memory = TierFile(folder, transfers).allocate(size), Slab(size).flat
    memory.random_(0, 256)
    copy(flat, memory)
    found: dict[str, list[float]] = {"read": [], "write": []}
    for _ in range(3):
        for name, pair in (("write", (flat, memory)), ("read", (memory, flat))):
            start = time.perf_counter()
            copy(*pair)
            found[name].append(size / (time.perf_counter() - start))
    transfers.close()
    return {name: median(rates) for name, rates in found.items()}


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def fio(folder: Path) -> float | None:
    """Return the bytes/s of the disk, read and written together; None without `fio`."""
    program = shutil.which("fio")
    if program is None:
        return None
    share = round(100 * READ / (READ + WRITTEN))
    options = {
        "name": "tier", "directory": folder, "rw": "rw", "rwmixread": share, "bs": PIECE,
        "size": "1g", "direct": 1, "numjobs": 4, "thread": 1, "group_reporting": 1,
        "ioengine": "psync", "output-format": "json", "unlink": 1,
    }  # fmt: skip
    command = [program, *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    (job,) = json.loads(done.stdout)["jobs"]
    moved = job["read"]["io_bytes"] + job["write"]["io_bytes"]
    return float(moved / (max(job["read"]["runtime"], job["write"]["runtime"]) / 1000))


def in_process(way: str, given: argparse.Namespace, file: Path) -> dict[str, Any]:
    """Return what a trial in a process of its own found."""
    flags = [f"--{name}={getattr(given, name)}" for name in ("blocks", "width", "steps", "threads")]
    command = [sys.executable, __file__, f"--trial={way}", f"--file={file}", *flags]
    command.append(f"--folder={given.folder}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(report: dict[str, Any]) -> None:
    """Print a table."""
    parameters, anonymous = report["parameters"], report["anonymous"]
    print(f"{parameters / 1e6:.0f} million parameters, {parameters * BYTES / 2**30:.2f} GiB of")
    print(f"weights and state; limit {report['limit'] / 2**20:.0f} MiB, used: ")
    print(f"data {report['data'] / 2**20:.0f} MiB")
    print("\n| | s a step | anonymous MiB |\n|---|---|---|")
    print(f"| resident | {median(report['resident']):.2f} | |")
    for way, rounds in report["seconds"].items():
        print(f"| {way} | {median(map(median, rounds)):.2f} | {anonymous[way] / 2**20:,.0f} |")
    read, write = (median(one[name] for one in report["alone"]) for name in ("read", "write"))
    rates = [round(rate / 1e9, 2) for rate in report["fio"] if rate is not None]
    print(
        f"\na step moves {report['moved'] / 1e9:.2f} GB; alone the tier reads {read / 1e9:.2f} GB/s"
    )
    print(f"and writes {write / 1e9:.2f}; fio {rates} GB/s")
    for name, bound in report["bounds"].items():
        print(f"bytes by {name} {bound:.2f} s, share of what binds {report['shares'][name]:.2f}")


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a directory on a disk")
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--deepspeed", action="store_true", help="measure its NVMe offload, too")
    parser.add_argument("--trial", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trial == "alone":
        print(json.dumps(alone(given.folder)))
        return
    if given.trial:
        print(json.dumps(trial(given.trial, given, given.file)))
        return
    parameters = given.blocks * 8 * given.width**2
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        file = Path(folder) / "model.safetensors"
        torch.manual_seed(0)
        save_file(decoder(given.blocks, given.width, "float32").module.state_dict(), file)
        rates = [fio(given.folder)]
        rounds: list[dict[str, Any]] = []
        rates_alone: list[dict[str, Any]] = []
        ways = ["ram", LIMITED, *[RIVAL] * given.deepspeed]
        for _ in range(given.rounds):
            rounds.append({way: in_process(way, given, file) for way in ways})
            rates.append(fio(given.folder))
            rates_alone.append(in_process("alone", given, file))
        resident = in_process("resident", given, file)
    for found in rounds:
        for way, one in list(found.items())[:2]:
            assert one["losses"] == resident["losses"], way
            assert one["digest"] == resident["digest"], way
    seconds = {way: median(median(found[way]["seconds"]) for found in rounds) for way in ways}
    known = [rate for rate in rates if rate is not None]
    moved = parameters * (READ + WRITTEN)
    compute = median(resident["seconds"])
    read, write = (median(one[name] for one in rates_alone) for name in ("read", "write"))
    bounds = {"alone": parameters * (READ / read + WRITTEN / write)}
    if known:
        bounds["fio"] = moved / median(known)
    shares = {name: max(compute, bound) / seconds[LIMITED] for name, bound in bounds.items()}
    report = {
        "machine": facts(),
        "parameters": parameters,
        "limit": parameters * BYTES // 4,
        "data": max(found[LIMITED]["data"] for found in rounds),
        "anonymous": {way: max(found[way]["anonymous"] for found in rounds) for way in ways},
        "seconds": {way: [found[way]["seconds"] for found in rounds] for way in seconds},
        "resident": resident["seconds"],
        "moved": moved,
        "fio": rates,
        "alone": rates_alone,
        "bounds": bounds,
        "shares": shares,
    }
    show(report)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
