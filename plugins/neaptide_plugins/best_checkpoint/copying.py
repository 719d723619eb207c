"""Copies a checkpoint to another name, byte by byte and atomically."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neaptide.checkpoint import read_manifest, writing
from neaptide.checkpoint.verify import opened
from neaptide.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_PIECE = 2**20


def copy_checkpoint(source: Path, target: Path) -> None:
    """Write a copy of the checkpoint `source` as `target`, in place of an older copy.

    After a crash the old or the new copy is complete. Raises CheckpointError, and keeps the old
    copy, if a file is not the one that was saved.
    """
    manifest = read_manifest(source)
    with writing(target, manifest.step, manifest.facts) as writer:
        for name, entry in manifest.files.items():
            with writer.file(name) as file, opened(source / name) as (descriptor, _):
                while piece := os.read(descriptor, _PIECE):
                    file.write(piece)
            if file.entry() != entry:
                msg = f"{source / name} is not as it was saved; neaptide ckpt verify tells more"
                raise CheckpointError(msg)


def step_of(directory: Path) -> int | None:
    """Return the step of a checkpoint; None if there is none, or if its manifest is damaged."""
    try:
        return read_manifest(directory).step
    except CheckpointError:
        return None
