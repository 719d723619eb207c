"""A directory on a disk, also where the one for temporary files is in RAM, and bytes for files."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import torch

from neaptide_toolkit.machine.file_systems import IN_MEMORY, kind_of
from neaptide_toolkit.offload import Slab

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


def folder() -> str:
    """Return the directory for temporary files, or this repository if the former is in RAM."""
    usual = gettempdir()
    return str(ROOT) if kind_of(Path(usual)) in IN_MEMORY else usual


def refusing(code: int) -> Callable[..., Any]:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


def noise(size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)


def aligned(values: torch.Tensor) -> torch.Tensor:
    return Slab(values.nbytes).flat.copy_(values)
