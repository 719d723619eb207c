"""The checkpoints of a run, by step: listing, the newest valid one, and pruning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.errors import CheckpointError

from .recovery import STEP, discard, interrupted, recover
from .verify import complete, verify

if TYPE_CHECKING:
    from pathlib import Path


def step_directory(root: Path, step: int) -> Path:
    """Return where the checkpoint taken after `step` updates is, as `root/step-00000400`."""
    return root / f"step-{step:08d}"


def checkpoints(root: Path) -> list[Path]:
    """Return the checkpoints in `root`, oldest first; empty if there is no such directory.

    Valid or not; one that a crash left under its `.old-` name is listed, and loading recovers it.
    """
    steps = {}
    for path in (*root.glob("step-*"), *interrupted(root)):
        match = STEP.fullmatch(path.name)
        if match and path == step_directory(root, int(match[1])):
            steps[int(match[1])] = path
    return [steps[step] for step in sorted(steps)]


def newest_valid(root: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint whose every byte is right, and a warning for each newer one."""
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
    """Delete all checkpoints older than the newest `keep` complete ones; `keep` >= 1.

    Complete means a valid manifest and files of the right sizes. Raises CheckpointError if one
    cannot be deleted.
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
