"""Functions that create the plugins, the model, the data and the optimizer of a run."""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from neaptide.api.phases import PhaseSchedule
from neaptide.api.task import Data, DataSpec, ModelSpec, Task
from neaptide.devices import api_of
from neaptide.errors import ConfigError, PluginError, text_of
from neaptide.hooks.enabling import PLACEMENT, PREDICTOR, split_name
from neaptide.hooks.manager import HookManager
from neaptide.hooks.registry import load_class

from .defaults import Defaults

LEDGER_GROUP = "neaptide.ledgers"
LENGTH_GROUP = "neaptide.lengths"
LOSS_GROUP = "neaptide.losses"
"""`loss_of(given, log)` returns the loss function of a run. `given` is the user's or None."""
VERIFIER_GROUP = "neaptide.verifiers"

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from neaptide.config import RunConfig
    from neaptide.plugin import Plugin, PluginSpec

BUILDING: ContextVar[Callable[[], AbstractContextManager[Any]]] = ContextVar(
    "building", default=nullcontext
)
"""Makes the context in which a model is built. A planner counts its bytes in such a context."""


def create_plugins(config: RunConfig, ordered: Sequence[PluginSpec], log: Any) -> HookManager:
    """Import the class of each plugin, create the plugin with its config, and register it."""
    created: list[tuple[PluginSpec, Plugin[Any]]] = []
    for spec in ordered:
        cls = load_class(spec)
        try:
            created.append((spec, cls(config.plugins[spec.name])))
        except Exception as error:
            named = isinstance(error, ConfigError) and f"plugins.{spec.name}" in text_of(error)
            if not named:
                error.add_note(f"raised by plugin {spec.name!r} while it was created")
            raise
    return HookManager(created, Defaults(), log)


def schedule_of(config: RunConfig, specs: Iterable[PluginSpec]) -> PhaseSchedule:
    """Return the phase schedule at the start of training."""
    predicts = any(PREDICTOR in spec.claims for spec in specs)
    return PhaseSchedule(
        warmup_steps=config.phases.warmup_updates(predicts=predicts),
        full_steps=config.phases.full.steps,
        correct_steps=config.phases.correct.steps,
        correction_interval=config.phases.predict.correction_interval,
        predicts=predicts,
    )


def choose_device(name: str, model: nn.Module | None) -> torch.device:
    """Return the device `name`; raise ConfigError if this machine cannot use it.

    `auto` means the device of `model`; without a model, the machine's accelerator or else the CPU.
    """
    if name == "auto":
        parameter = next(model.parameters(), None) if model is not None else None
        if parameter is not None:
            return parameter.device
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    device = torch.device(name)
    api = api_of(device)
    count = api.device_count() if api is not None and api.is_available() else 0
    if (device.index or 0) >= count:
        found = f"has {count or 'no'} usable {device.type.upper()} device{'s' * (count > 1)}"
        msg = f"this machine {found} (got {name!r}) @ train.device"
        raise ConfigError(msg)
    return device


def is_placed(hooks: HookManager) -> bool:
    """Return whether a plugin, and not the core, moves the model to the device."""
    return any(PLACEMENT in spec.claims for spec in hooks.specs.values())


def build_task(config: RunConfig, hooks: HookManager) -> Task:
    """Build the model that `[model]` names; do not move it to the run's device."""
    if not config.model.name:
        msg = "name a model: 'builtin:byte-gpt' or 'package.module:factory' @ model.name"
        raise ConfigError(msg)
    scheme, name = split_name(config.model.name, hooks.specs.values())
    spec = ModelSpec(scheme, name, config.model.options, is_placed(hooks))
    with BUILDING.get()():
        built = hooks.first("build_model", (torch.nn.Module, Task), spec=spec)
    if built is None:
        msg = f"no enabled plugin builds {config.model.name!r} @ model.name"
        raise PluginError(msg)
    return built if isinstance(built, Task) else Task(built)


def build_data(config: RunConfig, hooks: HookManager) -> Data:
    """Build the data that `[data]` names."""
    if not config.data.name:
        msg = "name the data: 'builtin:python-stdlib' or 'package.module:factory' @ data.name"
        raise ConfigError(msg)
    scheme, name = split_name(config.data.name, hooks.specs.values())
    spec = DataSpec(
        scheme,
        name,
        config.data.options,
        config.train.batch_size,
        config.eval.batches,
        config.seed,
    )
    built: Data | None = hooks.first("build_data", Data, spec=spec)
    if built is None:
        msg = f"no enabled plugin builds {config.data.name!r} @ data.name"
        raise PluginError(msg)
    return built


def build_optimizer(
    config: RunConfig, model: nn.Module, hooks: HookManager
) -> torch.optim.Optimizer:
    """Build the optimizer that `[optimizer]` names."""
    section = config.optimizer
    optimizer: torch.optim.Optimizer = hooks.first(
        "configure_optimizer",
        torch.optim.Optimizer,
        model=model,
        name=section.name,
        lr=section.lr,
        options=section.options,
    )
    return optimizer
