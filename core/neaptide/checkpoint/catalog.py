"""Lists the checkpoints of a run, finds the newest valid checkpoint, deletes old checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.errors import CheckpointError
from neaptide.io.folder import Folder

from .manifest import MANIFEST, MAX_BYTES, STEP, Manifest, parse
from .recovery import discard, entries, interrupted, recover
from .verify import BASE, base_of, complete, is_base, read_bytes, verify

if TYPE_CHECKING:
    from pathlib import Path


def step_directory(root: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` updates, such as `root/step-00000400`."""
    return root / f"step-{step:08d}"


def checkpoints(root: Path) -> list[Path]:
    """Return the checkpoints in `root`, oldest first; an empty list if `root` does not exist.

    The list includes damaged checkpoints, and checkpoints that have an `.old-` name after a crash.
    Raises CheckpointError if `root` cannot be read.
    """
    steps = {}
    for path in (*entries(root), *interrupted(root)):
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

    The age of a checkpoint is the step in its manifest, or in its name if the manifest is damaged.
    So a renamed checkpoint does not outlive newer ones. It is not counted, because no run loads it.
    Frozen weights to which no checkpoint in `root` refers are deleted, too, whatever the names of
    the checkpoints. Raises CheckpointError if a checkpoint cannot be deleted.
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
    old = [path for path in found if _step(path) < _step(kept[0])]
    rest = [path for path in entries(root) if path not in old]
    needed = {base_of(root, str(own.facts.get(BASE))) for path in rest if (own := _manifest(path))}
    bases = [path for path in rest if complete(path) and is_base(path) and path not in needed]
    for directory in (*old, *bases):
        try:
            discard(Folder(root, link=False), directory.name)
        except OSError as error:
            msg = f"cannot delete checkpoint {directory}: {error.strerror}; delete it by hand"
            raise CheckpointError(msg) from error


def _step(directory: Path) -> int:
    found = _manifest(directory)
    return found.step if found else int(directory.name.removeprefix("step-"))


def _manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a checkpoint under any name; None if it is missing or damaged."""
    path = directory / MANIFEST
    try:
        return parse(read_bytes(path, MAX_BYTES), str(path))
    except CheckpointError:
        return None
