"""Finds the lines and branches that mention a device, and reads which of them a run covered."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = frozenset({
    "accelerator", "cuda", "cudart", "current_stream", "empty_cache", "get_device_module",
    "is_cuda", "is_pinned", "mps", "pin_memory", "record_event", "record_stream", "wait_event",
    "wait_stream", "xpu",
})  # fmt: skip
"""Names of variables, attributes and keyword arguments."""
KINDS = frozenset({"cpu", "cuda", "mps", "xpu"})
"""Strings that `device.type` is compared with."""


_NOT_OWN = {"annotation", "body", "cases", "finalbody", "handlers", "orelse", "target", "targets"}


@attrs.frozen
class Mention:
    """A statement that mentions a device, and where it branches if its condition does."""

    path: str
    line: int
    last: int
    text: str
    """The statement's first line: it stays the same when lines above it come or go."""
    branches: bool


def mentions(root: Path, path: Path) -> list[Mention]:
    """Return what a module says of devices, without imports and what only a type checker reads."""
    source = path.read_text("utf-8")
    lines = source.splitlines()
    found = []
    for statement in _statements(ast.parse(source)):
        parts = list(_own_parts(statement))
        if any(map(_names_a_device, parts)):
            last = max(part.end_lineno or part.lineno for part in parts)  # type: ignore[attr-defined]  # expressions
            text = lines[statement.lineno - 1].strip()
            branches = isinstance(statement, ast.If | ast.While)
            where = path.relative_to(root).as_posix()
            found.append(Mention(where, statement.lineno, last, text, branches))
    return found


def uncovered(mention: Mention, measured: dict[str, Any]) -> list[str]:
    """Return what a run left out, by the file's part of coverage's JSON report."""
    rows = range(mention.line, mention.last + 1)
    if not mention.branches:
        return [mention.text] if set(rows) & set(measured["missing_lines"]) else []
    missing = [arc for arc in measured["missing_branches"] if arc[0] in rows]
    return [f"{mention.text} -> {'else' if _leaves(arc, mention) else 'then'}" for arc in missing]


def branch_count(mention: Mention) -> int:
    """Return how many ways the statement can go."""
    return 2 if mention.branches else 1


def _leaves(arc: list[int], mention: Mention) -> bool:
    return arc[1] != mention.last + 1


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            continue
        if isinstance(node, ast.stmt):
            yield node
        yield from _statements(node)


def _own_parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a statement that runs, without those of the statements in it."""
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
        return
    for name, value in ast.iter_fields(statement):
        if name in _NOT_OWN:
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.withitem):
                yield part.context_expr
            elif isinstance(part, ast.expr):
                yield part


def _names_a_device(part: ast.AST) -> bool:
    for node in ast.walk(part):
        if isinstance(node, ast.Name) and node.id in WORDS:
            return True
        if isinstance(node, ast.Attribute) and node.attr in WORDS:
            return True
        if isinstance(node, ast.keyword) and node.arg in WORDS:
            return True
        if isinstance(node, ast.Compare) and _is_kind(node):
            return True
    return False


def _is_kind(compare: ast.Compare) -> bool:
    constants = {
        node.value
        for side in (compare.left, *compare.comparators)
        for node in ast.walk(side)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return bool(constants & KINDS)


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
