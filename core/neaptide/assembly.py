"""Puts a run together: which plugins, in which order, and everything they are asked to build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from . import config as configs
from .config import RunConfig
from .defaults import Defaults
from .errors import ConfigError, PluginError
from .manager import HookManager
from .memory import Ledger, nested_tensors, tensor_bytes
from .phases import PhaseSchedule
from .plugin import PluginSpec
from .registry import disabled_plugins, installed_plugins, load_class
from .resolve import resolve
from .task import Data, DataSpec, ModelSpec, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from .phases import Phase
    from .parameters import ParameterStore
    from .plugin import Plugin

DYNAMICS = "dynamics"
PREDICTOR = "predictor"


def configured(
    config: RunConfig | Mapping[str, Any] | str | Path | None,
    plugins: Iterable[str | PluginSpec] = (),
) -> tuple[RunConfig, list[PluginSpec]]:
    """Return the whole config and the enabled plugins in resolved order; imports no plugin class.

    `plugins` adds to those the config lists: names of installed ones, or manifests. Raises
    ConfigError or PluginError with everything that is wrong.
    """
    given = list(plugins)
    registry = installed_plugins()
    strangers = {entry.name: entry for entry in given if isinstance(entry, PluginSpec)}
    specs = _Known(registry, strangers)
    loaded = _load(config, specs)
    enabled = dict(loaded.plugins)
    for entry in given:
        name = entry.name if isinstance(entry, PluginSpec) else entry
        if name not in specs:
            configs.structure({"plugins": {name: {}}}, specs)  # raises, with a suggestion
        enabled.setdefault(name, specs[name].config())
    for section, kind in ((loaded.model, "model"), (loaded.data, "data")):
        scheme = split_name(section.name)[0]
        if scheme and not any(f"{kind}:{scheme}" in specs[name].schemes for name in enabled):
            builder = registry.for_scheme(f"{kind}:{scheme}", f"{kind}.name")
            enabled[builder.name] = builder.config()
    blocked = disabled_plugins()
    enabled = {name: value for name, value in enabled.items() if name not in blocked}
    ordered = resolve([specs[name] for name in enabled], specs)
    _check_prediction(loaded, ordered)
    return attrs.evolve(loaded, plugins={spec.name: enabled[spec.name] for spec in ordered}), ordered


class _Known(dict[str, PluginSpec]):
    """The installed manifests and those handed in; a broken one raises only when it is wanted."""

    def __init__(self, registry: Mapping[str, PluginSpec], extra: Mapping[str, PluginSpec]) -> None:
        super().__init__(extra)
        self._registry = registry

    def __missing__(self, name: str) -> PluginSpec:
        return self._registry[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._registry

    def __iter__(self) -> Any:
        yield from {**dict.fromkeys(self._registry), **dict.fromkeys(super().__iter__())}


def _load(config: Any, specs: Mapping[str, PluginSpec]) -> RunConfig:
    if config is None:
        return RunConfig()
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, str | Path):
        return configs.load([config], specs=specs, disabled=disabled_plugins()).config
    return configs.structure(config, specs, disabled=disabled_plugins())


def split_name(name: str) -> tuple[str, str]:
    """Split `"builtin:byte-gpt"` into scheme and name; a `package.module:factory` has no scheme.

    What follows the colon decides: a Python attribute has no dash, and a scheme is one word that
    an installed plugin builds.
    """
    scheme, colon, rest = name.partition(":")
    known = {
        entry.partition(":")[2]
        for spec in installed_plugins().usable().values()
        for entry in spec.schemes
    }
    if colon and (scheme in known or not rest.replace(".", "_").isidentifier()):
        return scheme, rest
    return "", name


def _check_prediction(config: RunConfig, ordered: Sequence[PluginSpec]) -> None:
    if config.phases.predict.confidence is None:
        return
    if not any(DYNAMICS in spec.claims for spec in ordered):
        msg = (
            f"confidence needs a dynamics model, and no enabled plugin claims {DYNAMICS!r}; "
            f"remove it or enable one @ phases.predict.confidence"
        )
        raise ConfigError(msg)


def create_plugins(
    config: RunConfig, ordered: Sequence[PluginSpec], log: Any
) -> HookManager:
    """Import the classes, give each its config, and register them all."""
    created: list[tuple[PluginSpec, Plugin[Any]]] = []
    for spec in ordered:
        cls = load_class(spec)
        try:
            created.append((spec, cls(config.plugins[spec.name])))
        except Exception as error:
            error.add_note(f"raised by plugin {spec.name!r} while it was created")
            raise
    return HookManager(created, Defaults(), log)


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
    """Return the device: the model's own for `auto`, else the first GPU, else the CPU."""
    if name == "auto":
        parameter = next(model.parameters(), None) if model is not None else None
        if parameter is not None:
            return parameter.device
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        msg = f"this machine has no usable CUDA device (got {name!r}) @ train.device"
        raise ConfigError(msg)
    return torch.device(name)


def build_task(config: RunConfig, hooks: HookManager) -> Task:
    """Build the model `[model]` names; nothing of it is on the device yet."""
    if not config.model.name:
        msg = "name a model: 'builtin:byte-gpt' or 'package.module:factory' @ model.name"
        raise ConfigError(msg)
    scheme, name = split_name(config.model.name)
    spec = ModelSpec(scheme, name, config.model.options)
    built = hooks.first("build_model", (torch.nn.Module, Task), spec=spec)
    if built is None:
        msg = f"no enabled plugin builds {config.model.name!r} @ model.name"
        raise PluginError(msg)
    return built if isinstance(built, Task) else Task(built)


def build_data(config: RunConfig, hooks: HookManager) -> Data:
    """Build the batches `[data]` names."""
    if not config.data.name:
        msg = "name the data: 'builtin:python-stdlib' or 'package.module:factory' @ data.name"
        raise ConfigError(msg)
    scheme, name = split_name(config.data.name)
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
    """Build the optimizer `[optimizer]` names."""
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
    """Return what the core itself holds in `phase`, by the spans of the store.

    Activations are not in it: they depend on the batch.
    """
    spans = store.spans()
    trainable = sum(span.bytes for span in spans if span.trainable)
    ledger = Ledger()
    for span in spans:
        ledger = ledger.add("core", "weights", span.tier, span.bytes)
    if phase.runs_backward:
        ledger = ledger.add("core", "gradients", "device", trainable, ("backward", "update"))
    state = tensor_bytes(nested_tensors(store.optimizer_state_dict()))
    ledger = ledger.add("core", "optimizer.state", "device", state)
    if phase.applies_prediction:
        ledger = ledger.add("core", "rollback", "host", trainable, ("predict",))
    return ledger
