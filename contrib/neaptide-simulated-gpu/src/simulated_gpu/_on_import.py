"""Prepares a package for the simulated device when a program imports it, and not before."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

PREPARED = {
    "triton": "simulated_gpu.triton.driver",
    "torch.distributed.distributed_c10d": "simulated_gpu.distributed",
    "bitsandbytes.backends.default.ops": "simulated_gpu._bitsandbytes",
}
"""By package: the module whose `install` prepares it."""
WITHOUT_KERNELS = frozenset({"bitsandbytes.backends.cuda.ops"})
"""Modules of kernels for real GPUs, imported empty: the library computes by torch's operations."""


class _Empty(Loader):
    """Loads a module in which nothing is."""

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""


class _Then(Loader):
    """Loads a package by its own loader, and prepares it."""

    def __init__(self, loader: Any, prepare: str) -> None:
        self._loader = loader
        self._prepare = prepare

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        importlib.import_module(self._prepare).install()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(MetaPathFinder):
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, _: Any = None) -> ModuleSpec | None:
        if name in WITHOUT_KERNELS:
            return ModuleSpec(name, _Empty())
        spec = PathFinder.find_spec(name, path) if name in PREPARED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, PREPARED[name])
        return spec


def install() -> None:
    """Prepare what is imported already, and the rest as it is imported."""
    for name, prepare in PREPARED.items():
        if name in sys.modules:
            importlib.import_module(prepare).install()
    sys.meta_path.insert(0, _Finder())
