"""Finds every wait, hold and event in a module, and takes one out: a mutant."""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType

WAITS = frozenset({"wait", "finish", "settle", "synchronize", "drain", "end_copies"})
"""Methods without arguments that wait."""
ORDERS = frozenset({"hold", "record", "record_stream", "wait_event", "wait_stream"})
"""Methods that put what they are given in an order."""
_AFTER = 2
"""The place of the tickets among the arguments of `submit`."""
THE_HOST = "the host in "
"""What begins the text of a mutant that waits on the device where the host should."""
_DONE = "__import__('neaptide_toolkit.offload', fromlist=['DONE']).DONE"


@attrs.frozen
class Mutant:
    """A module without one of its waits."""

    module: str
    line: int
    what: str
    """The code that is taken out."""
    source: str
    function: str = ""
    """The function in which it stands."""

    def __str__(self) -> str:
        return f"{self.module}:{self.line} without {self.what}"


def modules(package: str) -> list[str]:
    """Return the names of a package's modules, in all of its folders, without importing one."""
    folder = _file_of(package).with_suffix("")
    found = [path.relative_to(folder).with_suffix("") for path in sorted(folder.rglob("*.py"))]
    return [".".join((package, *path.parts)) for path in found if path.name != "__init__"]


def unchanged(module: str) -> Mutant:
    """Return a module as it is: a control."""
    source = ast.unparse(ast.parse(_file_of(module).read_text("utf-8")))
    return Mutant(module, 0, "nothing", source)


def mutants(module: str) -> list[Mutant]:
    """Return one mutant for each wait, hold, event and ticket of a module."""
    return mutants_of(module, _file_of(module).read_text("utf-8"))


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return the mutants of a module that has this source."""
    tree = ast.parse(source)
    return [
        Mutant(
            module, line, what, ast.unparse(ast.fix_missing_locations(mutated)), _around(tree, line)
        )
        for line, what, mutated in _mutated(tree)
    ]


def _around(tree: ast.Module, line: int) -> str:
    """Return the name of the innermost function around a line, or an empty one."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    around = [one for one in functions if one.lineno <= line <= (one.end_lineno or line)]
    return max(around, key=lambda one: one.lineno).name if around else ""


def _file_of(module: str) -> Path:
    """Return the file of a module, without importing it or a package around it."""
    first, *rest = module.split(".")
    spec = importlib.util.find_spec(first)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)), *rest).with_suffix(".py")


def _mutated(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    for index, node in enumerate(ast.walk(tree)):
        for place in range(len(_edits(tree, node))):
            changed = copy.deepcopy(tree)
            twin = list(ast.walk(changed))[index]
            yield getattr(node, "lineno", 0), _edits(changed, twin)[place](), changed


def _edits(tree: ast.Module, node: ast.AST) -> list[partial[str]]:
    """Return what can be taken out at a node itself: functions that do so, and say what it was."""
    if isinstance(node, ast.Assign):
        return _of_assignment(tree, node)
    if not isinstance(node, ast.Call):
        return []
    if _is_computed(node):
        return [partial(_replace, tree, node, _done())]
    tickets = _names(tree, _is_submit)
    given = [one for one in node.args if isinstance(one, ast.Name) and one.id in tickets]
    edits = [partial(_replace, tree, one, _done()) for one in given]
    if _is_wait(node):
        edits.append(partial(_without_call, tree, node))
        if _method(node) == "finish":
            edits.append(partial(_wait_of_the_device, node))
    after = _after(node)
    if isinstance(after, ast.Tuple):
        return edits + _one_less(after)
    nothing = ast.Tuple([], ast.Load())
    return edits if after is None else [*edits, partial(_replace, tree, after, nothing)]


def _of_assignment(tree: ast.Module, node: ast.Assign) -> list[partial[str]]:
    """Return the edits of tickets that attributes keep, and of tuples of tickets with a name."""
    name = node.value.id if isinstance(node.value, ast.Name) else None
    if _is_submit(node.value) or name == "ticket":
        kept = [one for one in node.targets if isinstance(one, ast.Attribute)]
        return [partial(_without_target, node, one) for one in kept]
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
    afters = {after.id for call in calls if isinstance(after := _after(call), ast.Name)}
    target = node.targets[0]
    named = isinstance(target, ast.Name) and target.id in afters
    return _one_less(node.value) if named and isinstance(node.value, ast.Tuple) else []


def _names(tree: ast.Module, wanted: Callable[[ast.AST], bool]) -> set[str]:
    """Return the names that are assigned such a value."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    return {
        target.id
        for node in assigned
        for target in node.targets
        if isinstance(target, ast.Name) and wanted(node.value)
    }


def _one_less(tickets: ast.Tuple) -> list[partial[str]]:
    def drop(place: int) -> str:
        return "the ticket " + ast.unparse(tickets.elts.pop(place))

    return [
        partial(drop, place)
        for place, ticket in enumerate(tickets.elts)
        if not _is_computed(ticket)  # that is an edit of its own
    ]


def _without_call(tree: ast.Module, call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    inner, what = call.func.value, ast.unparse(call)
    chained = isinstance(inner, ast.Call)
    _replace(tree, call, inner if chained else ast.Constant(None))
    return f".{call.func.attr}()" if chained else what


def _wait_of_the_device(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    what = ast.unparse(call)
    call.func.attr = "wait"
    return THE_HOST + what


def _without_target(node: ast.Assign, target: ast.expr) -> str:
    what = ast.unparse(target) + " = its ticket"
    if len(node.targets) == 1:
        node.targets = [ast.Name("_nobody", ast.Store())]
    else:
        node.targets.remove(target)
    return what


def _replace(tree: ast.Module, old: ast.expr, new: ast.expr) -> str:
    """Put one expression in the place of another, and return the old one's code."""
    what = ast.unparse(old)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(each is old for each in value):
                value[[each is old for each in value].index(True)] = new
    return what


def _method(node: ast.AST) -> str | None:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return node.func.attr if called else None  # type: ignore[attr-defined]  # it is one


def _is_submit(node: ast.AST) -> bool:
    return _method(node) == "submit"


def _after(call: ast.Call) -> ast.expr | None:
    """Return the tickets after which `submit` runs its work."""
    if not _is_submit(call):
        return None
    named = [one.value for one in call.keywords if one.arg == "after"]
    return next(iter([*call.args[_AFTER : _AFTER + 1], *named]), None)


def _is_wait(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func.value) == "super()":
        return False
    given = bool(call.args or call.keywords)
    return call.func.attr in (ORDERS if given else WAITS)


def _is_computed(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "computed"


def _done() -> ast.expr:
    return ast.parse(_DONE, mode="eval").body


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != self._mutant.module:
            return None
        return importlib.util.spec_from_loader(name, self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.source, str(self._mutant), "exec"), vars(module))


def import_as(mutant: Mutant) -> None:
    """Let the mutant be imported instead of its module, which must not be imported yet."""
    assert mutant.module not in sys.modules
    sys.meta_path.insert(0, _Loader(mutant))
