"""A checkpoint directory as tensors, for the one file of another library's checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def packed(directory: Path) -> dict[str, torch.Tensor]:
    """Return each file's bytes, mapped and not read; the files may be deleted meanwhile."""
    return {
        path.name: torch.from_file(
            str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8
        )
        for path in sorted(directory.iterdir())
    }


def unpacked(files: Mapping[str, torch.Tensor], directory: Path) -> Path:
    """Write what `packed` returned into a new directory; return the directory."""
    directory.mkdir()
    for name, held in files.items():
        path = directory / name
        if path.name != name:
            msg = f"this name is not that of a file in a checkpoint (got {name!r})"
            raise CheckpointError(msg)
        held.cpu().numpy().tofile(path)
    return directory
