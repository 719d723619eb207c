"""Runs of a small task, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from several_runs import CONFIG, TASK, trained

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the task and its configuration."""
    made = tmp_path_factory.mktemp("several")
    (made / "several_task.py").write_text(TASK, encoding="utf-8")
    (made / "several.toml").write_text(CONFIG, encoding="utf-8")
    return made


@pytest.fixture(scope="session")
def one(folder: Path) -> Path:
    """Return the run of one process."""
    return trained(folder, 1, "one")


@pytest.fixture(scope="session")
def two(folder: Path) -> Path:
    """Return the run of two processes."""
    return trained(folder, 2, "two")
