"""Finds the lines and branches that mention a device, and reads which of them a run covered."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = frozenset({
    "accelerator", "allocator_count", "api_in_use", "api_of", "compute_capability", "cuda",
    "cudart", "current_stream", "empty_cache", "end_backward", "free_bytes", "get_device_module",
    "has_streams", "is_cuda", "is_pinned", "lacks", "mps", "pin_memory", "record_event",
    "record_stream", "synchronize", "wait_event", "wait_stream", "xpu",
})  # fmt: skip
"""Names of variables, attributes and keyword arguments of `torch` and the modules on devices."""
OF_AN_API = frozenset({"Event", "Stream"})
"""Names in torch's module for a device. Other modules have classes of these names, too."""
APIS = frozenset({"api", "_api"})
"""What such a module is called."""
KINDS = frozenset({"cpu", "cuda", "mps", "xpu"})
"""Strings that `device.type` is compared with."""


_NOT_OWN = {"annotation", "body", "cases", "finalbody", "handlers", "orelse", "target", "targets"}


@attrs.frozen
class Mention:
    """A statement that mentions a device, and where it branches if its condition does."""

    path: str
    line: int
    last: int
    body: int
    """The first line that runs if the condition holds."""
    text: str
    """The statement's first line, or its condition. A line above it that goes changes neither."""
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
            text, body = lines[statement.lineno - 1].strip(), 0
            if isinstance(statement, ast.If | ast.While):
                text, body = f"if {ast.unparse(statement.test)}", statement.body[0].lineno
            where = path.relative_to(root).as_posix()
            found.append(Mention(where, statement.lineno, last, body, text, bool(body)))
    return found


@attrs.frozen
class Way:
    """A way through a statement: its line, or one of the two ways that its condition goes."""

    path: str
    text: str
    covered: bool


def ways(mention: Mention, measured: dict[str, Any] | None) -> list[Way]:
    """Return a statement's ways, by its file's part of coverage's JSON report.

    There is no such part of a file that was not imported.
    """
    if measured is None:
        ends = ("yes", "no") if mention.branches else ("",)
        texts = [f"{mention.text} ({end})" if end else mention.text for end in ends]
        return [Way(mention.path, text, covered=False) for text in texts]
    rows = range(mention.line, mention.last + 1)
    if not mention.branches:
        return [Way(mention.path, mention.text, not set(rows) & set(measured["missing_lines"]))]
    arcs = [
        (arc, covered)
        for key, covered in (("executed_branches", True), ("missing_branches", False))
        for arc in measured[key]
        if arc[0] in rows
    ]
    return [
        Way(mention.path, f"{mention.text} ({_says(arc, mention)})", covered)
        for arc, covered in arcs
    ]


def _says(arc: list[int], mention: Mention) -> str:
    return "yes" if mention.last < arc[1] <= mention.body else "no"


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
        if isinstance(node, ast.Attribute) and (node.attr in WORDS or _is_of_an_api(node)):
            return True
        if isinstance(node, ast.keyword) and node.arg in WORDS:
            return True
        if isinstance(node, ast.Compare) and _is_kind(node):
            return True
    return False


def _is_of_an_api(node: ast.Attribute) -> bool:
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return node.attr in OF_AN_API and name in APIS


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
