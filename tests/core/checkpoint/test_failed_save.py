"""What the error of a save says of the checkpoint before it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from neaptide.checkpoint import writing
from neaptide.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def failed(directory: Path) -> None:
    with writing(directory, 4, {}):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (None, ""),
        ("notes", ""),
        ("step-00000002", "; the previous checkpoint is intact"),
        ("step-00000004", "; the previous checkpoint is intact"),
        (".old-step-00000002", "; the previous checkpoint is intact"),
    ],
)
def test_a_previous_checkpoint_is_spoken_of_where_there_is_one(
    tmp_path: Path, there: str | None, told: str
) -> None:
    if there is not None:
        (tmp_path / there).mkdir()
    with pytest.raises(CheckpointError) as caught:
        failed(tmp_path / "step-00000004")

    expected = f"Input/output error; check the disk or set run.dir elsewhere{told}"
    assert expected == str(caught.value).split(": ", 1)[1]
