"""Decorators for functions that Numba compiles: no GIL, and floats divide as in torch."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

# With colorama, an error that Numba catches itself has a terminal's colours reset at exit, on a
# dumb terminal, too. So it is not found while Numba is imported.
_colorama = sys.modules.get("colorama")
sys.modules["colorama"] = None  # type: ignore[assignment]  # this is how Python is told
try:
    import numba.core.errors
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic
finally:
    del sys.modules["colorama"]
    if _colorama is not None:
        sys.modules["colorama"] = _colorama

inner = partial(numba.njit, nogil=True, error_model="numpy")
"""For functions that other compiled functions of the same file call."""


def step(function: Any) -> Any:
    """For functions that `host_threads.run` calls. The result of compiling is kept on disk.

    Numba's cache notices changes of one file only. Therefore all compiled functions that a step
    calls are in the step's file.
    """
    try:
        return inner(cache=True)(function)
    except RuntimeError:  # no folder for the cache can be written
        return inner(function)


def types_of(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types for which Numba compiles a function that is called with these arguments."""
    return tuple(map(numba.typeof, arguments))


def is_kept(function: Any, signature: tuple[Any, ...]) -> bool:
    """Return whether a step is on disk for arguments of these types, so that it need not be made.

    Numba has no public way to ask.
    """
    kept = function._cache.load_overload(signature, function.targetctx)  # noqa: SLF001
    return kept is not None


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def fused(_: Any, factor: Any, other: Any, term: Any) -> Any:
    """Return `factor * other + term` of three float32 numbers, rounded once."""
    if not factor == other == term == types.float32:
        return None

    def built(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(factor, other, term), built


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def call_with_pointers(
    _: Any, address: Any, count: Any, source: Any, target: Any, mode: Any
) -> Any:
    """Call the C function at an address with four integers, of which two are addresses of arrays.

    A function of 32-bit integers may be called, too: it reads the lower halves.
    """

    def built(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = [context.get_value_type(kind) for kind in signature.args[1:]]
        function = ir.FunctionType(ir.VoidType(), kinds).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    numbers = (address, count, source, target, mode)
    return types.none(*[types.int64] * len(numbers)), built
