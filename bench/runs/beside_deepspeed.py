"""Train from a disk with layer-streaming and with DeepSpeed's ZeRO-3, the same model, in turns.

    python bench/runs/beside_deepspeed.py [--folder DIR] [--blocks N] [--width N] [--json PATH]

The model is that of `beyond_ram.py`, with float32 AdamW, on the CPU; weights and optimizer state
are on the disk in both. DeepSpeed has to be installed, with its operator `async_io`, for which the
system needs libaio. It has one block in memory, reads the next ones ahead, and updates a block at a
time while others are read and written (`pipeline_read`, `pipeline_write`). Each trial is a process
of its own; the order changes from round to round. `x` is DeepSpeed's time of a step over that of
layer-streaming, in the same round. The largest difference of a loss is told, too: a run of
layer-streaming has the losses of one in RAM (`beyond_ram.py` demands it).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from beyond_ram import _status as status
from beyond_ram import in_process
from largest import TOKENS, decoder, loss_of
from safetensors.torch import save_file

from neaptide_toolkit.machine.facts import facts

ALONE = {
    "DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533",
}  # fmt: skip


def settings(block: int, largest: int, folder: Path) -> dict[str, Any]:
    """Return DeepSpeed's config, for blocks of `block` parameters; `largest` is of one tensor."""
    place = {"device": "nvme", "nvme_path": str(folder), "pin_memory": False}
    return {
        "train_micro_batch_size_per_gpu": TOKENS,
        "train_batch_size": TOKENS,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 3,
            "offload_param": {**place, "buffer_count": 5, "buffer_size": largest, "max_in_cpu": 0},
            "offload_optimizer": {
                **place, "buffer_count": 12, "pipeline_read": True, "pipeline_write": True,
            },
            "sub_group_size": block,
            "stage3_max_live_parameters": 2 * block,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": block,
            "stage3_param_persistence_threshold": 0,
        },
        "aio": {
            "block_size": 1 << 20, "queue_depth": 8, "single_submit": False,
            "overlap_events": True, "intra_op_parallelism": 2,
        },
    }  # fmt: skip


def deepspeed_trial(given: argparse.Namespace) -> dict[str, Any]:
    """Train in this process; return losses, bytes of memory and seconds of each step."""
    import deepspeed  # noqa: PLC0415 - only this process needs it

    torch.set_num_threads(given.threads)
    before = status("RssAnon")
    config = settings(8 * given.width**2, 4 * given.width**2 + 1024, given.folder)
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = decoder(given.blocks, given.width, "float32").module
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    generator = torch.Generator().manual_seed(1)
    seconds, losses = [], []
    for _ in range(given.steps):
        batch = torch.randn(TOKENS, given.width, generator=generator)
        start = time.perf_counter()
        loss = loss_of(engine, batch)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return {
        "losses": losses,
        "seconds": seconds[2:],
        "anonymous": status("RssAnon") - before,
    }


def beside(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what DeepSpeed finds in a process of its own."""
    flags = [f"--{name}={getattr(given, name)}" for name in ("blocks", "width", "steps", "threads")]
    command = [sys.executable, __file__, "--trial", f"--folder={folder}", *flags]
    done = subprocess.run(  # noqa: S603 - ours
        command, capture_output=True, text=True, check=False, env={**os.environ, **ALONE}
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def rounds(given: argparse.Namespace) -> list[dict[str, dict[str, Any]]]:
    """Measure both ways in turns."""
    found = []
    for number in range(given.rounds):
        with tempfile.TemporaryDirectory(dir=given.folder) as made:
            file = Path(made) / "model.safetensors"
            torch.manual_seed(0)
            save_file(decoder(given.blocks, given.width, "float32").module.state_dict(), file)
            ways = {
                "layer-streaming": partial(in_process, "disk", given, file),
                "deepspeed": partial(beside, given, Path(made)),
            }
            order = [*ways] if number % 2 else [*ways][::-1]
            one = {way: ways[way]() for way in order}
        found.append(one)
    return found


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a directory on a disk")
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trial", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if importlib.util.find_spec("deepspeed") is None:
        msg = "deepspeed is not installed; pip install --no-build-isolation deepspeed"
        raise SystemExit(msg)
    if given.trial:
        print(json.dumps(deepspeed_trial(given)))
        return
    found = rounds(given)
    print("| | s a step | anonymous MiB |\n|---|---|---|")
    for way in ("layer-streaming", "deepspeed"):
        seconds = [median(one[way]["seconds"]) for one in found]
        most = max(one[way]["anonymous"] for one in found) / 2**20
        spread = f"{median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        print(f"| {way} | {spread} | {most:,.0f} |")
    differ = max(
        abs(there - here) / here
        for one in found
        for here, there in zip(*(one[way]["losses"] for way in one), strict=True)
    )
    ratios = [
        median(one["deepspeed"]["seconds"]) / median(one["layer-streaming"]["seconds"])
        for one in found
    ]
    print(f"\nx {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"losses differ by up to {differ:.0e} of their value")
    if given.json:
        report = {"machine": facts(), "rounds": found, "x": ratios, "losses_differ": differ}
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
