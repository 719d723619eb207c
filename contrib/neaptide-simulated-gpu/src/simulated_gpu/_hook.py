"""Copied as `sitecustomize.py`, which Python imports when it starts: torch brings the device along.

It must not import `simulated_gpu` itself: a process without torch stays as it is.
"""

from __future__ import annotations

import copy
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

FOLDER = Path(__file__).resolve().parent


class Imported:
    """The loader of a module that is imported already."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - Python's interface
        """Return the module."""
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back."""
        module.__spec__ = self.spec


class DeviceFirst:
    """Imports the device when torch, or the device itself, is imported for the first time."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return the spec of the module, which the device has imported."""
        if name not in ("torch", "simulated_gpu"):
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]  # it has what Python calls
        import_module("simulated_gpu._programs").begin(FOLDER)
        module = sys.modules[name]
        spec = copy.copy(module.__spec__)
        assert spec is not None
        spec.loader = Imported(module)  # type: ignore[assignment]
        module.__spec__ = spec  # Python takes this one from here on
        return spec


sys.meta_path.insert(0, DeviceFirst())  # type: ignore[arg-type]
_other = PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if Path(path or ".").resolve() != FOLDER]
)
if _other is not None and _other.loader is not None:
    _other.loader.exec_module(module_from_spec(_other))
