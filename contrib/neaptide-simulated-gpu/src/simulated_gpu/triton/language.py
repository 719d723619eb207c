"""`triton.language` while a kernel is interpreted: its functions act at once, by the builder.

Functions of `triton.jit` are compiled objects to Triton. Here each becomes a Python function once.
"""

from __future__ import annotations

import ast
import inspect
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from simulated_gpu.triton.builder import Builder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUILDER = Builder()
_SEMANTIC = TritonSemantic(BUILDER)
_LOCK = threading.RLock()  # what is changed below is the process's
_TENSOR = "_simulated_gpu_tensor"
_KEY = "_simulated_gpu_function"
_MISSING = object()


class _Changes:
    """Attributes that are different while a kernel runs."""

    def __init__(self) -> None:
        self._all: list[tuple[Any, str, Any, Any]] = []

    def set_attr(self, thing: Any, name: str, value: Any) -> None:
        """Note a change and make it; Triton's own functions call this."""
        self._all.append((thing, name, vars(thing).get(name, _MISSING), value))
        setattr(thing, name, value)

    def make(self) -> None:
        for thing, name, _, value in self._all:
            setattr(thing, name, value)

    def undo(self) -> None:
        for thing, name, before, _ in reversed(self._all):
            if before is _MISSING:
                delattr(thing, name)
            else:
                setattr(thing, name, before)


_changes: _Changes | None = None


@contextmanager
def interpreting() -> Iterator[Builder]:
    """Have the language act at once, for one thread at a time."""
    global _changes  # noqa: PLW0603 - found once: it takes milliseconds
    with _LOCK:
        if _changes is None:
            _changes = _all_changes()
        else:
            _changes.make()
        try:
            with np.errstate(all="ignore"):
                yield BUILDER
        finally:
            _changes.undo()


def _all_changes() -> _Changes:
    changes = _Changes()
    for package in (tl, core, tl.math, core.tensor, core.tensor_descriptor_base):
        for name, member in inspect.getmembers(package):
            if core.is_builtin(member):
                changes.set_attr(package, name, _at_once(member))
    for name, member in list(vars(core.tensor).items()):
        if isinstance(member, JITFunction):
            changes.set_attr(core.tensor, name, _method(member))
    interpreter._patch_lang_tensor(core.tensor, changes)  # noqa: SLF001
    for language in (tl, core):
        interpreter._patch_lang_core(language, changes)  # noqa: SLF001
        changes.set_attr(language, "reduce", _wide(language.reduce))
    changes.set_attr(JITFunction, "__call__", _call)
    return changes


def _call(function: Any, *args: Any, **given: Any) -> Any:
    return python_function(function)(*args, **given)


def _at_once(builtin: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **given: Any) -> Any:
        return builtin(*args, **{**given, "_semantic": _SEMANTIC})

    return called


def _method(function: Any) -> Callable[..., Any]:
    def called(tensor: Any, *args: Any, **given: Any) -> Any:
        return function(tensor, *args, **given)

    return called


def _wide(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Reduce bfloat16 as float32: the interpreter would reduce its bits."""

    def reduced(input: Any, *args: Any, **given: Any) -> Any:  # noqa: A002 - Triton's
        if isinstance(input, tuple) or input.dtype != tl.bfloat16:
            return reduce(input, *args, **given)
        return reduce(input.to(tl.float32), *args, **given).to(tl.bfloat16)

    return reduced


def python_function(kernel: Any) -> Callable[..., Any]:
    """Return a function of `triton.jit` as one of Python: what is assigned becomes a tensor."""
    known = vars(kernel).get(_KEY)
    if known is None or known[0] != kernel.src:
        known = (kernel.src, _rewritten(kernel))
        setattr(kernel, _KEY, known)
    return known[1]


def _rewritten(kernel: Any) -> Callable[..., Any]:
    tree = _Assignments().visit(kernel.parse())
    function = tree.body[0]
    function.returns = None
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    ast.fix_missing_locations(tree)
    code = inspect.unwrap(kernel.fn).__code__
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    closure = inspect.getclosurevars(kernel.fn).nonlocals
    scope = {
        name: _at_once(value) if core.is_builtin(value) else value
        for name, value in {**kernel.fn.__globals__, **closure}.items()
    }
    scope[_TENSOR] = lambda value: _SEMANTIC.to_tensor(value, check_type=False)
    exec(compile(tree, code.co_filename, "exec"), scope)  # noqa: S102 - the kernel's own source
    found: Callable[..., Any] = scope[function.name]
    return found


class _Assignments(ast.NodeTransformer):
    """Turns `x = value` into `x = tensor(value)`, as Triton's compiler understands it."""

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        """Wrap the value."""
        name = ast.Name(id=_TENSOR, ctx=ast.Load())
        node.value = ast.Call(func=name, args=[node.value], keywords=[])
        return node


def as_argument(value: Any) -> Any:
    """Return an argument as the kernel sees it: a scalar tensor, a pointer or a constant."""
    if isinstance(value, bool):
        return core.tensor(interpreter.TensorHandle(np.array([value]), tl.int1), tl.int1)
    if isinstance(value, float):
        number = np.array([value], dtype=np.float32)
        return core.tensor(interpreter.TensorHandle(number, tl.float32), tl.float32)
    return interpreter._implicit_cvt(value)  # noqa: SLF001
