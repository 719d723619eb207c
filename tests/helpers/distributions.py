"""Distributions made on the spot: what an installer leaves behind of a stranger's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def install(
    site: Path,
    name: str,
    entries: Mapping[str, Mapping[str, str]],
    files: Mapping[str, str] | None = None,
) -> None:
    """Install the distribution `name` 1.0 into `site`: its files, and its entry points by group."""
    information = site / f"{name.replace('-', '_')}-1.0.dist-info"
    information.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    (information / "METADATA").write_text(metadata, encoding="utf-8")
    groups = (
        f"[{group}]\n" + "".join(f"{entry} = {target}\n" for entry, target in targets.items())
        for group, targets in entries.items()
    )
    (information / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    for path, text in (files or {}).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")
