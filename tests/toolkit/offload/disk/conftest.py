"""A file on a disk: with a name, and a nameless one of the tier."""

from __future__ import annotations

import errno
import fcntl
import mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import disks
import pytest
import torch
from cold_files import SIZE

from neaptide_toolkit.offload.disk import TierFile, Transfers

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


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with TemporaryDirectory(dir=disks.folder()) as made:
        yield Path(made)


@pytest.fixture
def transfers() -> Iterator[Transfers]:
    made = Transfers(torch.device("cpu"), piece=4 * mmap.PAGESIZE)
    yield made
    made.close()


@pytest.fixture(params=["direct", "through the page cache"])
def file(request: pytest.FixtureRequest, tmp_path: Path, transfers: Transfers) -> TierFile:
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "direct":
            patch.setattr(fcntl, "fcntl", disks.refusing(errno.EINVAL))
        made = TierFile(tmp_path, transfers)
    assert made.direct == (request.param == "direct")
    return made
