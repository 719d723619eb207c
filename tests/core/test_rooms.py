"""The core stays small enough to be read, and no file or folder anywhere grows without bound."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "neaptide"
SOURCES = [ROOT / "core", ROOT / "plugins", ROOT / "kernels"]

SAME_CONCEPT = {
    "KernelScope": "the core's Protocol, and the class of the registry that implements it",
}
"""Class names that several files define, and why that is one meaning."""

pytestmark = pytest.mark.skipif(not CORE.is_dir(), reason="the source tree is not beside the tests")


def modules(*folders: Path) -> list[Path]:
    """Return all Python files below folders."""
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def lines(path: Path) -> int:
    """Return how many lines a file has."""
    return len(path.read_text(encoding="utf-8").splitlines())


def defined_twice(*folders: Path) -> dict[str, list[str]]:
    """Return each name that several classes have (a leading underscore aside), and where."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules(*folders):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{path.name}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1}


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


def test_a_class_name_has_one_meaning() -> None:
    examples = (ROOT / "contrib").glob("neaptide-example-*/src")  # others have torch's names
    found = defined_twice(*SOURCES, *examples)
    assert {} == {name: places for name, places in found.items() if name not in SAME_CONCEPT}


def test_names_of_the_same_concept_are_still_defined_twice() -> None:
    assert SAME_CONCEPT.keys() <= defined_twice(*SOURCES).keys()


def test_a_name_with_two_meanings_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Plan: ...\n")
    (tmp_path / "other.py").write_text("def f():\n    class _Plan: ...\n\nclass Window: ...\n")
    assert {"Plan": ["one.py:1", "other.py:2"]} == defined_twice(tmp_path)
