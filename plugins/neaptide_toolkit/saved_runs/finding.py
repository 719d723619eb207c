"""Finds a checkpoint of a run, and reads the run's configuration from it. Nothing is written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.checkpoint.catalog import checkpoints, step_directory
from neaptide.checkpoint.manifest import MANIFEST, STEP
from neaptide.checkpoint.store import Checkpoint
from neaptide.checkpoint.verify import examine
from neaptide.errors import CheckpointError, WrongCheckpointError
from neaptide.run.saved_form import formed
from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@attrs.frozen(eq=False)
class SavedRun:
    """A verified checkpoint of a run, and the configuration that the checkpoint holds."""

    name: str
    """Of the run directory."""
    checkpoint: Checkpoint
    config: Mapping[str, Any]

    __repr__ = one_line

    @property
    def data(self) -> Mapping[str, Any]:
        """The table `[data]`."""
        table: Mapping[str, Any] = self.config["data"]
        return table

    @property
    def plugins(self) -> Mapping[str, Any]:
        """The settings of the enabled plugins, by name."""
        tables: Mapping[str, Any] = self.config["plugins"]
        return tables

    @property
    def model(self) -> Mapping[str, Any]:
        """The table `[model]`."""
        table: Mapping[str, Any] = self.config["model"]
        return table


def find(path: Path, step: int | None = None) -> SavedRun:
    """Return the newest checkpoint of a run, or that after `step` updates; verify every byte.

    Args:
        path: a run directory, a folder of checkpoints, or a checkpoint.
        step: updates before the checkpoint.

    Raises:
        WrongCheckpointError: there is no such checkpoint.
        CheckpointError: it is damaged.
    """
    try:
        directory = _directory(path, step)
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}; give a readable directory"
        raise WrongCheckpointError(msg) from error
    found = examine(directory)
    if found.manifest is None or found.problems:
        more = f" (and {len(found.problems) - 1} more problems)" if found.problems[1:] else ""
        msg = (
            f"checkpoint {directory} cannot be used: {found.problems[0]}{more}; choose another "
            f"with --step (neaptide ckpt list {path})"
        )
        raise CheckpointError(msg)
    checkpoint = Checkpoint(directory, found.manifest, found.identities)
    config = checkpoint.section("config")
    with formed(checkpoint, "config"):
        _check_config(config)
    return SavedRun(_run_of(path), checkpoint, config)


def _run_of(path: Path) -> str:
    place = path.resolve()
    for made in (STEP, re.compile("checkpoints")):
        place = place.parent if made.fullmatch(place.name) else place
    return place.name


def _directory(path: Path, step: int | None) -> Path:
    # If the manifest is lost, the folder's name still identifies a checkpoint.
    if (path / MANIFEST).exists() or (path.is_dir() and STEP.fullmatch(path.name)):
        if step is not None:
            msg = f"{path} is one checkpoint; leave out --step, or give the run directory"
            raise WrongCheckpointError(msg)
        return path
    found = checkpoints(path / "checkpoints") or checkpoints(path)
    if not found:
        msg = (
            f"there is no checkpoint in {path}; give a checkpoint, a folder of them or a run "
            f"directory"
        )
        raise WrongCheckpointError(msg)
    if step is None:
        return found[-1]
    wanted = step_directory(found[-1].parent, step)
    if wanted not in found:
        steps = ", ".join(str(int(one.name.removeprefix("step-"))) for one in found[-5:])
        msg = f"{path} has no checkpoint of step {step}; the last ones are of {steps} @ --step"
        raise WrongCheckpointError(msg)
    return wanted


def _check_config(config: Any) -> None:
    match config:
        case {
            "model": {"name": str(), "options": dict()},
            "data": {"name": str(), "options": dict()},
            "plugins": dict(),
        }:
            return
    msg = "not the configuration of a run"
    raise ValueError(msg)
