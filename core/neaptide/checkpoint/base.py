"""Frozen weights: saved once, beside the checkpoints that refer to them by their sha256.

They are a checkpoint of their own, with one file.
"""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from neaptide.errors import CheckpointError, WrongCheckpointError

from .recovery import exists
from .safetensors_stream import TensorFile, write_tensors
from .store import load, save
from .verify import BASE_FILE, base_of, verify

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from .safetensors_header import TensorItem


def save_base(root: Path, items: Sequence[TensorItem], sound: set[Path]) -> str:
    """Save `items` in `root`, unless they are there; return the sha256 of their file.

    `sound` has the directories that this run has written or verified. Raises CheckpointError.
    """
    digest = hashlib.sha256()
    only_digested: Any = SimpleNamespace(write=digest.update)
    write_tensors(only_digested, items)
    sha256 = digest.hexdigest()
    directory = base_of(root, sha256)
    if directory not in sound and (not exists(directory) or verify(directory)):
        save(directory, {}, 0, {}, {"weights": items})
    sound.add(directory)
    return sha256


def load_base(sha256: str, places: Iterable[Path]) -> TensorFile:
    """Return the frozen weights with this digest, after a check of every byte.

    Raises WrongCheckpointError if they are in none of the directories `places`, and CheckpointError
    if they are damaged.
    """
    looked_for = [base_of(place, sha256) for place in places]
    for directory in looked_for:
        if exists(directory):
            found = load(directory)
            if found.manifest.files[BASE_FILE].sha256 != sha256:
                msg = f"{directory} has other weights than its name says; restore it"
                raise CheckpointError(msg)
            return found.tensors("weights")
    msg = (
        f"the checkpoint refers to frozen weights that are missing: there is no {looked_for[0]} "
        f"(sha256 {sha256}); copy it there"
    )
    raise WrongCheckpointError(msg)
