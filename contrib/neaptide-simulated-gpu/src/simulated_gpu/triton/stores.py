"""Which arguments a kernel stores to, from its source: for fake data, where nothing is run."""

from __future__ import annotations

import ast
from typing import Any

from triton.runtime.jit import JITFunction

_KEY = "_simulated_gpu_stored"


def stored(kernel: Any) -> frozenset[str]:
    """Return the parameters from which an address is computed that the kernel stores to.

    An address that is itself loaded from memory comes from no parameter.
    """
    known = vars(kernel).get(_KEY)
    if known is None or known[0] != kernel.src:
        setattr(kernel, _KEY, (kernel.src, frozenset()))  # of a kernel that calls itself
        known = (kernel.src, frozenset(_Stores(kernel).found()))
        setattr(kernel, _KEY, known)
    return known[1]


class _Stores:
    def __init__(self, kernel: Any) -> None:
        self._function = kernel.parse().body[0]
        self._scope = kernel.get_capture_scope()
        self._from = {each.name: {each.name} for each in kernel.params if not each.is_constexpr}

    def found(self) -> set[str]:
        """Follow assignments until nothing new comes, then look at each call."""
        before = -1
        while before != (before := sum(map(len, self._from.values()))):
            for node in ast.walk(self._function):
                if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    self._assign(targets, self._behind(node.value))
        written: set[str] = set()
        for node in ast.walk(self._function):
            if isinstance(node, ast.Call):
                written |= self._written_by(node)
        return written

    def _assign(self, targets: list[Any], parameters: set[str]) -> None:
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    self._from[node.id] = self._from.get(node.id, set()) | parameters

    def _behind(self, node: ast.AST) -> set[str]:
        """Return the parameters whose pointers an expression may hold."""
        if isinstance(node, ast.Name):
            return self._from.get(node.id, set())
        if isinstance(node, ast.Call) and _name(node) == "load":
            return set()
        return set().union(*map(self._behind, ast.iter_child_nodes(node)))

    def _written_by(self, call: ast.Call) -> set[str]:
        name = _name(call)
        if name == "store" or name.startswith("atomic_"):
            given = call.args[:1] + [each.value for each in call.keywords if each.arg == "pointer"]
            if isinstance(call.func, ast.Attribute) and not call.args[1:]:
                given.append(call.func.value)  # descriptor.store(offsets, value)
            return set().union(*map(self._behind, given))
        callee = self._scope.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if not isinstance(callee, JITFunction):
            return set()
        given = dict(zip(callee.arg_names, call.args, strict=False))
        given.update({each.arg: each.value for each in call.keywords if each.arg})
        return set().union(*(self._behind(given[each]) for each in stored(callee) if each in given))


def _name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
