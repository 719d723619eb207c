"""Lists the checkpoints of a run, finds the newest valid checkpoint, deletes old checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.errors import CheckpointError

from .recovery import STEP, discard, interrupted, recover
from .verify import complete, verify

if TYPE_CHECKING:
    from pathlib import Path


def step_directory(root: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` updates, such as `root/step-00000400`."""
    return root / f"step-{step:08d}"


def checkpoints(root: Path) -> list[Path]:
    """Return the checkpoints in `root`, oldest first; an empty list if `root` does not exist.

    The list includes damaged checkpoints, and checkpoints that have an `.old-` name after a crash.
    """
    steps = {}
    for path in (*root.glob("step-*"), *interrupted(root)):
        match = STEP.fullmatch(path.name)
        if match and path == step_directory(root, int(match[1])):
            steps[int(match[1])] = path
    return [steps[step] for step in sorted(steps)]


def newest_valid(root: Path) -> tuple[Path | None, list[str]]:
    """Return the newest valid checkpoint, and a warning for each newer, damaged checkpoint."""
    warnings: list[str] = []
    for directory in reversed(checkpoints(root)):
        try:
            recover(directory)
            problems = verify(directory)
        except CheckpointError as error:
            problems = [str(error)]
        if not problems:
            return directory, warnings
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        warnings.append(f"checkpoint {directory.name} is skipped: {problems[0]}{more}")
    return None, warnings


def prune(root: Path, keep: int) -> None:
    """Keep the newest `keep` (1 or more) complete checkpoints; delete all older checkpoints.

    Raises CheckpointError if a checkpoint cannot be deleted.
    """
    if keep < 1:
        msg = f"prune must keep at least 1 checkpoint (got {keep})"
        raise ValueError(msg)
    found = checkpoints(root)
    for directory in found:
        recover(directory)
    kept = [directory for directory in found if complete(directory)][-keep:]
    if len(kept) < keep:
        return
    for directory in found[: found.index(kept[0])]:
        try:
            discard(directory)
        except OSError as error:
            msg = f"cannot delete checkpoint {directory}: {error.strerror}; delete it by hand"
            raise CheckpointError(msg) from error
