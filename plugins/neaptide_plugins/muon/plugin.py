"""Builds the optimizer for runs that name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, NoConfig, Plugin, hookimpl
from neaptide.config import structure_options

from .checks import KINDS
from .config import SPEC, MuonOptions
from .groups import parameter_groups
from .optimizer import Muon

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from neaptide import ParameterStore, Run


@attrs.define(eq=False)
class MuonPlugin(Plugin[NoConfig]):
    """Builds `[optimizer] name = "muon"`."""

    @hookimpl
    def configure_optimizer(
        self, model: nn.Module, name: str, lr: float, options: Mapping[str, Any]
    ) -> Muon | None:
        """Build it over the trainable parameters."""
        if name != SPEC.name:
            return None
        return build(model, lr, structure_options(MuonOptions, options, "optimizer", "options"))

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Say which parameters are whose."""
        optimizer = store.optimizer
        if not isinstance(optimizer, Muon):
            run.log.info("muon.unused", optimizer=type(optimizer).__name__)
            return
        elements = dict.fromkeys(KINDS, 0)
        for group in optimizer.param_groups:
            elements[group["kind"]] += sum(param.numel() for param in group["params"])
        run.log.info("muon.started", **elements)
        if not elements["muon"]:
            run.log.warning("muon.no-matrix", adamw=elements["adamw"])


def build(model: nn.Module, lr: float, options: MuonOptions) -> Muon:
    """Return the optimizer of a model; ConfigError where an option does not fit it."""
    try:
        groups = parameter_groups(
            model,
            adamw=options.adamw,
            split=options.split,
            stacked=options.stacked,
            convolutions=options.convolutions,
        )
    except ValueError as error:
        msg = f"{error} @ optimizer.options.split"
        raise ConfigError(msg) from error
    if not groups:
        msg = "the model has no trainable parameters; unfreeze some (requires_grad=True)"
        raise ConfigError(msg)
    for group in groups:
        if group["kind"] == "adamw":
            group["lr"] = lr * options.adamw_lr_ratio
    try:
        return Muon(
            groups,
            lr=lr,
            momentum=options.momentum,
            nesterov=options.nesterov,
            ns_steps=options.ns_steps,
            ns_dtype=options.ns_dtype,
            scale=options.scale,
            weight_decay=options.weight_decay,
            betas=options.adamw_betas,
            eps=options.adamw_eps,
        )
    except ValueError as error:
        msg = f"{error} @ optimizer.name"
        raise ConfigError(msg) from error
