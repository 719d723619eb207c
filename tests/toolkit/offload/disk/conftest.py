"""A file on a disk."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import disks
import pytest
import torch
from cold_files import SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def path() -> Iterator[Path]:
    with TemporaryDirectory(dir=disks.folder()) as made:
        path = Path(made) / "a file of weights"
        generator = torch.Generator().manual_seed(0)
        values = torch.randint(0, 256, (SIZE,), dtype=torch.uint8, generator=generator)
        path.write_bytes(values.numpy().tobytes())
        yield path
