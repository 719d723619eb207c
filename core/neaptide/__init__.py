"""Neaptide trains models that do not fit: four phases, low memory peaks, everything a plugin."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import RunConfig, field, structure_options
    from .diagnosis import Finding
    from .errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DivergedError,
        DoesNotFitError,
        NeaptideError,
        PluginError,
        RunDirectoryError,
        WrongCheckpointError,
    )
    from .memory import Ledger
    from .parameters import ParameterStore
    from .phases import CORRECT, FULL, PREDICT, WARMUP, Phase, PhaseSchedule
    from .plugin import NoConfig, Plugin, PluginSpec, hookimpl
    from .recorder import StepRecord
    from .signals import Interrupted, stop_on_signals
    from .spans import Span
    from .stash import StashKey
    from .steps import (
        JUMP_GAIN,
        PACE,
        Forecast,
        Jump,
        JumpGain,
        Loss,
        Outcome,
        Pace,
        StepResult,
        Trained,
        Update,
        WeighedLoss,
    )
    from .task import Data, DataSpec, ModelSpec, Run, Task
    from .trainer import HybridTrainer

# Lazy (PEP 562), so that a manifest or a config check never imports torch.
_HOME = {
    "config": ("RunConfig", "field", "structure_options"),
    "diagnosis": ("Finding",),
    "errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "DivergedError",
        "DoesNotFitError",
        "NeaptideError",
        "PluginError",
        "RunDirectoryError",
        "WrongCheckpointError",
    ),
    "memory": ("Ledger",),
    "parameters": ("ParameterStore",),
    "phases": ("CORRECT", "FULL", "PREDICT", "WARMUP", "Phase", "PhaseSchedule"),
    "plugin": ("NoConfig", "Plugin", "PluginSpec", "hookimpl"),
    "recorder": ("StepRecord",),
    "signals": ("Interrupted", "stop_on_signals"),
    "spans": ("Span",),
    "stash": ("StashKey",),
    "steps": (
        "JUMP_GAIN",
        "PACE",
        "Forecast",
        "Jump",
        "JumpGain",
        "Loss",
        "Outcome",
        "Pace",
        "StepResult",
        "Trained",
        "Update",
        "WeighedLoss",
    ),
    "task": ("Data", "DataSpec", "ModelSpec", "Run", "Task"),
    "trainer": ("HybridTrainer",),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CORRECT",
    "FULL",
    "JUMP_GAIN",
    "PACE",
    "PREDICT",
    "WARMUP",
    "CheckpointError",
    "ConfigError",
    "Data",
    "DataError",
    "DataSpec",
    "DivergedError",
    "DoesNotFitError",
    "Finding",
    "Forecast",
    "HybridTrainer",
    "Interrupted",
    "Jump",
    "JumpGain",
    "Ledger",
    "Loss",
    "ModelSpec",
    "NeaptideError",
    "NoConfig",
    "Outcome",
    "Pace",
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
    "StepRecord",
    "StepResult",
    "Task",
    "Trained",
    "Update",
    "WeighedLoss",
    "WrongCheckpointError",
    "field",
    "hookimpl",
    "stop_on_signals",
    "structure_options",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f".{_MODULE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
