"""Neaptide trains models that do not fit into memory. It trains in four phases, with plugins."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .renamed import attribute

if TYPE_CHECKING:
    from .api.memory import Ledger
    from .api.middleware import (
        AroundBackward,
        AroundCorrect,
        AroundEvaluate,
        AroundForward,
        AroundOptimizerStep,
        AroundPredict,
        AroundPropose,
        AroundSave,
        AroundTrainStep,
    )
    from .api.parameters import ParameterStore
    from .api.phases import CORRECT, FULL, PREDICT, WARMUP, Phase, PhaseSchedule
    from .api.records import Finding, StepRecord
    from .api.spans import Span
    from .api.stash import StashKey
    from .api.steps import (
        DECLINED,
        NOTES,
        PACE,
        ROLLBACK,
        Forecast,
        Jump,
        Loss,
        Outcome,
        Pace,
        StepResult,
        Trained,
        Update,
        WeighedLoss,
    )
    from .api.task import Data, DataSpec, ModelSpec, Run, Task
    from .config import RunConfig, field, structure_options
    from .errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DivergedError,
        DoesNotFitError,
        ModelError,
        NeaptideError,
        PluginError,
        RunDirectoryError,
        WrongCheckpointError,
    )
    from .plugin import NoConfig, Plugin, PluginSpec, hookimpl
    from .run.signals import Interrupted, stop_on_signals
    from .run.trainer import HybridTrainer

    plan: Any  # see `__getattr__`

# Imported on first use (PEP 562): a manifest or a config check must not import torch.
_HOME = {
    "api.memory": "Ledger",
    "api.middleware": (
        "AroundBackward AroundCorrect AroundEvaluate AroundForward AroundOptimizerStep "
        "AroundPredict AroundPropose AroundSave AroundTrainStep"
    ),
    "api.parameters": "ParameterStore",
    "api.records": "Finding StepRecord",
    "api.phases": "CORRECT FULL PREDICT WARMUP Phase PhaseSchedule",
    "api.stash": "StashKey",
    "api.spans": "Span",
    "api.steps": (
        "DECLINED NOTES PACE ROLLBACK Forecast Jump Loss Outcome Pace StepResult Trained Update "
        "WeighedLoss"
    ),
    "api.task": "Data DataSpec ModelSpec Run Task",
    "config": "RunConfig field structure_options",
    "errors": (
        "CheckpointError ConfigError DataError DivergedError DoesNotFitError ModelError "
        "NeaptideError PluginError RunDirectoryError WrongCheckpointError"
    ),
    "plugin": "NoConfig Plugin PluginSpec hookimpl",
    "run.signals": "Interrupted stop_on_signals",
    "run.trainer": "HybridTrainer",
}
_MODULE = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "CORRECT",
    "DECLINED",
    "FULL",
    "NOTES",
    "PACE",
    "PREDICT",
    "ROLLBACK",
    "WARMUP",
    "AroundBackward",
    "AroundCorrect",
    "AroundEvaluate",
    "AroundForward",
    "AroundOptimizerStep",
    "AroundPredict",
    "AroundPropose",
    "AroundSave",
    "AroundTrainStep",
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
    "Ledger",
    "Loss",
    "ModelError",
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
    "plan",
    "stop_on_signals",
    "structure_options",
]


def __getattr__(name: str) -> Any:
    if name == "plan":  # the function of the planner that is installed
        return import_module(".plugin", __name__).sole("neaptide.planners").plan
    if name not in _MODULE:
        raise attribute(__name__, name, ImportError)
    return getattr(import_module(f".{_MODULE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
