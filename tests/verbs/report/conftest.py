"""Run directories written by hand, file by file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from neaptide.api.records import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

HEADER = ",".join(COLUMNS)


class Write(Protocol):
    """Writes a run directory; returns its path."""

    def __call__(
        self,
        rows: Iterable[str] = (),
        *,
        events: Iterable[Mapping[str, Any]] = (),
        metrics: Iterable[Mapping[str, Any]] = (),
        summary: Mapping[str, Any] | None = None,
        config: str = "",
        files: Mapping[str, str] | None = None,
    ) -> Path: ...


def write_run(
    directory: Path,
    rows: Iterable[str] = (),
    *,
    events: Iterable[Mapping[str, Any]] = (),
    metrics: Iterable[Mapping[str, Any]] = (),
    summary: Mapping[str, Any] | None = None,
    config: str = "",
    files: Mapping[str, str] | None = None,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        "steps.csv": "".join(f"{line}\n" for line in (HEADER, *rows)),
        "events.jsonl": "".join(f"{json.dumps(line)}\n" for line in events),
        "metrics.jsonl": "".join(f"{json.dumps(line)}\n" for line in metrics),
        "config.toml": config,
        **(files or {}),
    }
    if summary is not None:
        texts["summary.json"] = json.dumps(summary)
    for name, text in texts.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return what writes a run into `run`."""

    def written(rows: Iterable[str] = (), **files: Any) -> Path:
        return write_run(tmp_path / "run", rows, **files)

    return written
