"""The core stays small enough to be read, and no file or folder anywhere grows without bound."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "neaptide"
SOURCES = [ROOT / "core", ROOT / "plugins", ROOT / "kernels"]

pytestmark = pytest.mark.skipif(not CORE.is_dir(), reason="the source tree is not beside the tests")


def modules(*folders: Path) -> list[Path]:
    """Return all Python files below folders."""
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def lines(path: Path) -> int:
    """Return how many lines a file has."""
    return len(path.read_text(encoding="utf-8").splitlines())


def test_the_core_can_be_read_in_an_evening() -> None:
    assert sum(map(lines, modules(CORE))) <= 11_900


def test_what_a_plugin_meets_can_be_read_in_an_hour() -> None:
    met = modules(CORE / "api", CORE / "hooks", CORE / "loop")
    assert 0 < sum(map(lines, met)) <= 3_600


def test_no_file_is_long() -> None:
    counted = {str(path.relative_to(ROOT)): lines(path) for path in modules(*SOURCES)}
    assert {} == {name: count for name, count in counted.items() if count > 300}


def test_no_folder_is_crowded() -> None:
    folders = {path.parent for path in modules(*SOURCES)}
    counted = {str(folder.relative_to(ROOT)): len([*folder.glob("*.py")]) for folder in folders}
    assert {} == {name: count for name, count in counted.items() if count > 16}
