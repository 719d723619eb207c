"""Folders and everything in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def tree(root: Path) -> dict[str, bytes | str]:
    """Return everything below `root` with its content."""
    return {
        str(path.relative_to(root)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else "directory"
        for path in sorted(root.rglob("*"))
    }
