"""The core knows no plugin by name: no string in it is one."""

from __future__ import annotations

import ast
import shutil
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

import neaptide

CORE = Path(neaptide.__file__).parent
NAMES = frozenset(entry_points(group="neaptide.plugins").names)


def is_dtype(node: ast.AST | None) -> bool:
    """Return whether this is the name of a dtype, such as int8, which a plugin is called, too."""
    named = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return named and isinstance(getattr(torch, node.value, None), torch.dtype)


def dtypes_in(tree: ast.Module) -> set[ast.AST]:
    """Return the names in lists, sets and keys of mappings that hold names of dtypes only."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            names = node.elts
        elif isinstance(node, ast.Dict):
            names = node.keys
        else:
            continue
        if len(names) > 1 and all(map(is_dtype, names)):
            found.update(names)
    return found


def named(package: Path) -> list[str]:
    """Return where below `package` a string is the name of an installed plugin."""
    found = []
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        allowed = dtypes_in(tree)
        found += [
            f"{path.relative_to(package)}:{node.lineno}: {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and node.value in NAMES and node not in allowed
        ]
    return found


def test_plugins_are_installed() -> None:
    """Without one, nothing here would prove anything."""
    assert {"ema", "int8"} <= NAMES


def test_the_core_names_no_plugin() -> None:
    assert [] == named(CORE)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("_FIRST = 'ema'", 1),
        ("_FIRST = ('int8',)", 1),
        ('"""int8"""', 1),
        ("_BOTH = ['int8', 'ema']", 2),
        ("_BOTH = {'int8': 1, 'other': 2}", 1),
        ("_VALUES = {'float32': 'int8'}", 1),
        ("_F = f'int8{__name__}'", 1),
        ("_DTYPES = ('int8', 'float32')", 0),
        ("_DTYPES = {'int8': 1, 'bfloat16': 2}", 0),
        ("_SENTENCE = 'ema and int8'", 0),
    ],
)
def test_a_name_that_is_added_is_found(tmp_path: Path, line: str, found: int) -> None:
    copy = tmp_path / "loop"
    shutil.copytree(CORE / "loop", copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "update.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(f"{text}\n\n{line}\n", encoding="utf-8")
    assert found == len(named(copy))
