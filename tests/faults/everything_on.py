"""A tiny run with every plugin that ships for training, in a process of its own.

`everything_on.py DIRECTORY STEPS EVERY` prints a JSON line each EVERY updates with what the process
holds, and at last the digest. EVERY = 0 prints the digest alone.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from neaptide import HybridTrainer
from neaptide.run.assembly import build_data


def config(directory: str, steps: int) -> dict[str, Any]:
    return {
        "seed": 3,
        "model": {
            "name": "builtin:byte-gpt",
            "options": {"layers": 2, "width": 8, "heads": 1, "context": 8, "dropout": 0.1},
        },
        "data": {"name": "builtin:python-stdlib", "options": {"context": 8}},
        "run": {"dir": directory, "log_every": 25, "checkpoint_every": 250, "keep": 1},
        "eval": {"every": 250, "batches": 1},
        "train": {"steps": steps, "batch_size": 2, "device": "cpu", "clip_norm": 1.0},
        "phases": {
            "warmup": {"steps": 2},
            "full": {"steps": 4},
            "predict": {"max_horizon": 5, "correction_interval": 1, "rise": 10.0},
            "correct": {"steps": 2},
        },
        "plugins": {
            "activation-checkpointing": {},
            "divergence-monitor": {},
            "ema": {},
            "gradient-accumulation": {"steps": 2},
            "mixed-precision": {"predict": "bf16"},
            "predictor-drift": {"min_window": 4, "sample_every": 1},
            "profiler": {},
        },
    }


def held() -> dict[str, int]:
    """Return what this process holds: bytes, tensors, descriptors, threads and memory maps."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some objects of torch warn when they are looked at
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    proc = Path("/proc/self")
    return {
        "bytes": int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "tensors": tensors,
        "descriptors": len(list((proc / "fd").iterdir())),
        "threads": len(list((proc / "task").iterdir())),
        "maps": len((proc / "maps").read_text().splitlines()),
    }


def say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main(directory: str, steps: int, every: int) -> None:
    torch.set_num_threads(1)
    with HybridTrainer.from_config(config(directory, steps)) as trainer:

        def observe(result: Any, state: Any) -> None:
            if every and state.step % every == 0:
                say({"step": state.step, **held()})

        summary = trainer.fit(build_data(trainer.config, trainer.hooks), observe=observe)
        say([summary["digest"], sorted(trainer.hooks.plugins), summary["jumps"]])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
