"""bitsandbytes computes by torch's operations, one by one: it would compile them for a GPU."""

from __future__ import annotations

import inspect
import sys

OPERATIONS = "bitsandbytes.backends.default.ops"


def install() -> None:
    """Let each function that the library compiles be the function itself.

    The compiler takes seconds for every new shape before it finds no GPU, and the library then
    calls the function.
    """
    module = sys.modules[OPERATIONS]
    for name, one in inspect.getmembers(module, inspect.isfunction):
        if one.__module__ == OPERATIONS:
            setattr(module, name, inspect.unwrap(one))
