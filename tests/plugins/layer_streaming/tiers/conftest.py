"""Directories on a disk for the tests of tiers."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import disks
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with TemporaryDirectory(dir=disks.folder()) as made:
        yield Path(made)
