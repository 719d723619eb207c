"""Neaptide trains models that do not fit: four phases, low memory peaks, everything a plugin."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import RunConfig, field
    from .errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DivergedError,
        NeaptideError,
        PluginError,
        RunDirectoryError,
    )
    from .memory import Ledger
    from .parameters import ParameterStore, Span
    from .phases import CORRECT, FULL, PREDICT, WARMUP, Phase, PhaseSchedule
    from .plugin import NoConfig, Plugin, PluginSpec, hookimpl
    from .signals import Interrupted
    from .stash import StashKey
    from .steps import Forecast, Loss, Outcome, StepResult, Update
    from .task import Data, Run, Task
    from .trainer import HybridTrainer

# Lazy (PEP 562), so that a manifest or a config check never imports torch.
_HOME = {
    "config": ("RunConfig", "field"),
    "errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "DivergedError",
        "NeaptideError",
        "PluginError",
        "RunDirectoryError",
    ),
    "memory": ("Ledger",),
    "parameters": ("ParameterStore", "Span"),
    "phases": ("CORRECT", "FULL", "PREDICT", "WARMUP", "Phase", "PhaseSchedule"),
    "plugin": ("NoConfig", "Plugin", "PluginSpec", "hookimpl"),
    "signals": ("Interrupted",),
    "stash": ("StashKey",),
    "steps": ("Forecast", "Loss", "Outcome", "StepResult", "Update"),
    "task": ("Data", "Run", "Task"),
    "trainer": ("HybridTrainer",),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CORRECT",
    "FULL",
    "PREDICT",
    "WARMUP",
    "CheckpointError",
    "ConfigError",
    "Data",
    "DataError",
    "DivergedError",
    "Forecast",
    "HybridTrainer",
    "Interrupted",
    "Ledger",
    "Loss",
    "NeaptideError",
    "NoConfig",
    "Outcome",
    "ParameterStore",
    "Phase",
    "PhaseSchedule",
    "Plugin",
    "PluginError",
    "PluginSpec",
    "Run",
    "RunConfig",
    "RunDirectoryError",
    "Span",
    "StashKey",
    "StepResult",
    "Task",
    "Update",
    "field",
    "hookimpl",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f".{_MODULE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
