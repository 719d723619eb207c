"""Finds every wait, hold and event in a module, and takes one out: a mutant."""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

WAITS = {"wait", "finish", "hold", "settle", "synchronize", "record_stream", "record"}
_DONE = "__import__('neaptide_toolkit.offload', fromlist=['DONE']).DONE"


@attrs.frozen
class Mutant:
    """A module without one of its waits."""

    module: str
    line: int
    what: str
    """The code that is taken out."""
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} without {self.what}"


def unchanged(module: str) -> Mutant:
    """Return a module as it is: a control."""
    source = ast.unparse(ast.parse(_file_of(module).read_text("utf-8")))
    return Mutant(module, 0, "nothing", source)


def mutants(module: str) -> list[Mutant]:
    """Return one mutant for each wait, hold, event and ticket of a module."""
    tree = ast.parse(_file_of(module).read_text("utf-8"))
    return [
        Mutant(module, line, what, ast.unparse(ast.fix_missing_locations(mutated)))
        for line, what, mutated in _mutated(tree)
    ]


def _file_of(module: str) -> Path:
    """Return the file of a module, without importing it or a package around it."""
    first, *rest = module.split(".")
    spec = importlib.util.find_spec(first)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)), *rest).with_suffix(".py")


def _mutated(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    for index, node in enumerate(ast.walk(tree)):
        for place in range(_places(node)):
            changed = copy.deepcopy(tree)
            what = _take_out(list(ast.walk(changed))[index], place)
            yield getattr(node, "lineno", 0), what, changed


def _places(node: ast.AST) -> int:
    """Return how many things can be taken out at a node itself."""
    if isinstance(node, ast.Expr):
        return int(_is_wait(node.value))
    if isinstance(node, ast.Call):
        return len(_tickets_of(node)) + sum(map(_is_computed, _keywords(node)))
    if isinstance(node, ast.Assign):
        if _is_computed(node.value):
            return 1
        return sum(isinstance(one, ast.Attribute) for one in node.targets) * _is_ticket(node.value)
    return 0


def _take_out(node: ast.AST, place: int) -> str:
    if isinstance(node, ast.Expr):
        return _without_call(node)
    if isinstance(node, ast.Assign):
        return _without_target(node, place)
    assert isinstance(node, ast.Call)
    tickets = _tickets_of(node)
    if place < len(tickets):
        return "the ticket " + ast.unparse(tickets.pop(place))
    keyword = [one for one in node.keywords if _is_computed(one.value)][place - len(tickets)]
    what, keyword.value = ast.unparse(keyword.value), _done()
    return what


def _without_call(node: ast.Expr) -> str:
    call = node.value
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    inner, what = call.func.value, f".{call.func.attr}()"
    if not isinstance(inner, ast.Call):
        inner, what = ast.Constant(None), ast.unparse(call)
    node.value = inner
    return what


def _without_target(node: ast.Assign, place: int) -> str:
    if _is_computed(node.value):
        what, node.value = ast.unparse(node.value), _done()
        return what
    target = [one for one in node.targets if isinstance(one, ast.Attribute)][place]
    what = ast.unparse(target) + " = its ticket"
    if len(node.targets) == 1:
        node.targets = [ast.Name("_nobody", ast.Store())]
    else:
        node.targets.remove(target)
    return what


def _tickets_of(call: ast.Call) -> list[ast.expr]:
    """Return the list of tickets after which `submit` runs its work, or an empty one."""
    is_submit = isinstance(call.func, ast.Attribute) and call.func.attr == "submit"
    third = call.args[2] if is_submit and len(call.args) > 2 else None
    return third.elts if isinstance(third, ast.Tuple) else []


def _keywords(call: ast.Call) -> Sequence[ast.expr]:
    return [one.value for one in call.keywords]


def _is_wait(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in WAITS
        and ast.unparse(node.func.value) != "super()"
    )


def _is_computed(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "computed"


def _is_ticket(node: ast.expr) -> bool:
    submitted = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".submit")
    return submitted or (isinstance(node, ast.Name) and node.id == "ticket")


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
