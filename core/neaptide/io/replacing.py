"""Replaces a file atomically: writes a temporary file in the same folder, then renames it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to the file at `path`; after a crash the file has its old or new content.

    On an OSError the old file stays and the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
