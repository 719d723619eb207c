"""Write new files for verbs (subcommands); existing files are never overwritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


COMMENTS = "comments are not carried over"
"""The warning of a verb that converts a file to another format."""


def write_new(path: Path, text: str) -> None:
    """Write a new file; raise ConfigError if it exists already or cannot be written."""
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        msg = f"{path} exists already; name another file"
        raise ConfigError(msg) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        msg = f"cannot write {path}: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(msg) from error
