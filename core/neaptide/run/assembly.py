"""Functions that create the plugins, the model, the data and the optimizer of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide.api.kernels import KERNEL_GROUP
from neaptide.api.memory import Ledger
from neaptide.api.phases import PhaseSchedule
from neaptide.api.task import Data, DataSpec, ModelSpec, Task
from neaptide.devices import api_of
from neaptide.errors import ConfigError, PluginError
from neaptide.hooks.enabling import PLACEMENT, PREDICTOR, split_name
from neaptide.hooks.manager import HookManager
from neaptide.hooks.registry import load_class
from neaptide.plugin import shipped
from neaptide.tensors import nested_tensors, tensor_bytes

from .defaults import Defaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from neaptide.api.kernels import KernelScope
    from neaptide.api.parameters import ParameterStore
    from neaptide.api.phases import Phase
    from neaptide.config import RunConfig
    from neaptide.plugin import Plugin, PluginSpec


def create_plugins(config: RunConfig, ordered: Sequence[PluginSpec], log: Any) -> HookManager:
    """Import the class of each plugin, create the plugin with its config, and register it."""
    created: list[tuple[PluginSpec, Plugin[Any]]] = []
    for spec in ordered:
        cls = load_class(spec)
        try:
            created.append((spec, cls(config.plugins[spec.name])))
        except Exception as error:
            named = isinstance(error, ConfigError) and f"plugins.{spec.name}" in str(error)
            if not named:
                error.add_note(f"raised by plugin {spec.name!r} while it was created")
            raise
    return HookManager(created, Defaults(), log)


def kernel_scope() -> KernelScope:
    """Open the installed kernel registry. Raise PluginError unless exactly one is installed."""
    entries = shipped(KERNEL_GROUP)
    if len(entries) != 1:
        found = ", ".join(entry.distribution for entry in entries.values()) or "none"
        msg = (
            f"plugins register kernels: exactly one distribution must have an entry point of "
            f"{KERNEL_GROUP!r} (got {found})"
        )
        raise PluginError(msg)
    (entry,) = entries.values()
    scope: KernelScope = entry.load()()
    return scope


def schedule_of(config: RunConfig, specs: Iterable[PluginSpec]) -> PhaseSchedule:
    """Return the phase schedule at the start of training."""
    return PhaseSchedule(
        warmup_steps=config.phases.warmup.steps,
        full_steps=config.phases.full.steps,
        correct_steps=config.phases.correct.steps,
        correction_interval=config.phases.predict.correction_interval,
        predicts=any(PREDICTOR in spec.claims for spec in specs),
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
    spec = ModelSpec(scheme, name, config.model.options)
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


def base_ledger(store: ParameterStore, phase: Phase) -> Ledger:
    """Return the memory that the core uses in `phase`, in bytes.

    This is the memory of weights, gradients, optimizer state, and the copy of the weights that can
    undo a predicted update. Activations are not included, because they depend on the batch.
    """
    spans = store.spans()
    trainable = sum(span.bytes for span in spans if span.trainable)
    ledger = Ledger()
    for span in spans:
        ledger = ledger.add("core", "weights", span.tier, span.bytes)
    if phase.runs_backward:
        ledger = ledger.add("core", "gradients", "device", trainable, ("backward", "update"))
    with store.optimizer_state() as state:
        nbytes = tensor_bytes(nested_tensors(state))
    ledger = ledger.add("core", "optimizer.state", "device", nbytes)
    if phase.applies_prediction:
        ledger = ledger.add("core", "rollback", "host", trainable, ("predict",))
    return ledger
