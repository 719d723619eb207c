"""Every test that was there before the move has a place after it.

`ids.json` has, for each old file, the file its tests are in now (`to`, where that is another one),
the names that are the `same`, and those that `moved` to an id of their own.
"""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MAP: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("ids.json").read_text())


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the names of the test functions of a file; none where there is no such file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef))


def lost(old: str, entry: dict[str, Any]) -> list[str]:
    """Return the old ids of a file that have no target."""
    home = entry.get("to", old)
    targets = {name: f"{home}::{name}" for name in entry["same"]} | entry.get("moved", {})
    return [
        f"{old}::{name} -> {target}"
        for name, target in targets.items()
        if target.partition("::")[2] not in names_in(target.partition("::")[0])
    ]


@pytest.mark.parametrize("old", MAP)
def test_every_old_id_has_a_target(old: str) -> None:
    assert [] == lost(old, MAP[old])


def test_an_id_without_a_target_is_told() -> None:
    entry = {"to": "tests/moved/test_moved.py", "same": ["test_gone"], "moved": {}}
    assert ["a.py::test_gone -> tests/moved/test_moved.py::test_gone"] == lost("a.py", entry)
