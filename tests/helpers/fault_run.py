"""The run that faults are tried on: stopped inside an accumulation, with state of many plugins."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from support import tiny_trainer

from neaptide.api.rng import seed_all
from neaptide.run.signals import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS, STOPPED_AFTER = 8, 13
"""Updates of the whole run, each of two batches; batches after which it was stopped."""
OLDEST, OLDER, NEWEST = (Path("checkpoints") / f"step-{step:08d}" for step in (2, 4, 6))
WITH_TENSORS = (
    "buffers data gradients optimizer plugins rng training".split()  # noqa: SIM905 - a list of words
)
FILES = (
    *(f"{name}{ending}" for name in WITH_TENSORS for ending in (".json", ".safetensors")),
    *("config.json", "extra.json", "manifest.json", "weights.safetensors"),
)
"""The files of the newest checkpoint."""


def config(directory: Path) -> dict[str, Any]:
    """Return a run through all phases, twice a batch for each update."""
    return {
        "run": {"dir": str(directory), "checkpoint_every": 2, "keep": 0, "log_every": 2},
        "train": {"steps": STEPS, "clip_norm": 1.0},
        "phases": {
            "warmup": {"steps": 1},
            "full": {"steps": 5},
            "predict": {"max_horizon": 5, "correction_interval": 1, "rise": 10.0},
            "correct": {"steps": 2},
        },
        "plugins": {
            "divergence-monitor": {},
            "ema": {"decay": 0.9},
            "gradient-accumulation": {"steps": 2, "across_steps": True},
            "lr-schedule": {"name": "cosine", "warmup": 2},
            "predictor-drift": {"min_window": 4, "sample_every": 1},
            "profiler": {},
        },
    }


def fit(
    directory: Path,
    resume: str | Path | None = None,
    *,
    plugins: Any = (),
    allow_changes: bool = False,
    observe: Callable[..., None] = lambda *_: None,
    data: Callable[[list[Any]], Any] = list,
) -> str:
    """Train to the end and return the digest."""
    seed_all(0)
    trainer, batches = tiny_trainer(config(directory), plugins)
    with trainer:
        summary = trainer.fit(
            data(batches),
            validation=batches[-2:],
            resume=resume,
            allow_changes=allow_changes,
            observe=observe,
        )
    return str(summary["digest"])


def make_template(root: Path) -> tuple[Path, str]:
    """Make a run that was stopped, and the files of a reader beside it; return its digest."""

    def stop(result: Any, state: Any) -> None:
        if state.batches == STOPPED_AFTER:
            os.kill(os.getpid(), signal.SIGINT)

    run = root / "run"
    try:
        fit(run, observe=stop)
    except Interrupted:
        digest = fit(root / "whole")
    summary = json.loads((root / "whole/summary.json").read_text("utf-8"))
    # A run that was stopped has no summary; one that was finished and then lengthened has.
    (run / "summary.json").write_text(json.dumps({**summary, "steps": 6}), "utf-8")
    shutil.rmtree(root / "whole")
    shutil.copytree(run, root / "sound")
    # A run that cannot be resumed at all would count as refused after every fault.
    assert digest == fit(root / "sound", "auto")
    shutil.rmtree(root / "sound")
    assert sorted(FILES) == sorted(path.name for path in (run / NEWEST).iterdir())
    (root / "mine/folder").mkdir(parents=True)
    for name in ("file", "folder/file"):
        (root / "mine" / name).write_text("mine\n", encoding="utf-8")
    torch.set_num_threads(1)
    return root, digest
