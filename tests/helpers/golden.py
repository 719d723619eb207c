"""The stored configurations: where they are, and what one comes to.

    python tests/helpers/golden.py

writes what those of the coming version come to; released ones are left alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neaptide.config import LoadedConfig, all_formats, by_name, load, unstructure
from neaptide.hooks.registry import installed_plugins

ROOT = Path(__file__).resolve().parents[1] / "configs"
VERSIONS = sorted(path for path in ROOT.iterdir() if (path / "effective").is_dir())
SUFFIXES = {suffix for notation in all_formats().values() for suffix in notation.suffixes}
FILES = sorted(
    path for version in VERSIONS for path in version.iterdir() if path.suffix in SUFFIXES
)


def loaded(path: Path) -> LoadedConfig:
    """Load a stored configuration with the installed plugins and nothing else."""
    return load([path], specs=installed_plugins())


def effective_file(path: Path) -> Path:
    """Return where it is stored what a configuration came to."""
    return path.parent / "effective" / f"{path.stem}.json"


def effective_text(path: Path) -> str:
    """Return what a configuration comes to now."""
    return by_name("json").dumps(unstructure(loaded(path).config))


def stored(path: Path) -> Any:
    """Return what a configuration came to when it was stored."""
    return json.loads(effective_file(path).read_text(encoding="utf-8"))


if __name__ == "__main__":
    for coming in FILES:
        if coming.parent == VERSIONS[-1]:
            effective_file(coming).write_text(effective_text(coming), encoding="utf-8")
