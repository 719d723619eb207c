"""Builds the optimizer for runs that name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, NoConfig, Plugin, hookimpl
from neaptide.config import structure_options

from .config import SPEC, AdEMAMixOptions
from .optimizer import AdEMAMix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from neaptide import ParameterStore, Run


@attrs.define(eq=False)
class AdEMAMixPlugin(Plugin[NoConfig]):
    """Builds `[optimizer] name = "ademamix"`."""

    _warms_up_all_along: bool = attrs.field(init=False, default=False)

    @hookimpl
    def configure_optimizer(
        self, model: nn.Module, name: str, lr: float, options: Mapping[str, Any]
    ) -> AdEMAMix | None:
        """Build it over the trainable parameters."""
        if name != SPEC.name:
            return None
        chosen = structure_options(AdEMAMixOptions, options, "optimizer", "options")
        self._warms_up_all_along = chosen.warmup_steps is None
        settings = attrs.asdict(chosen, recurse=False) | {"warmup_steps": chosen.warmup_steps or 0}
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        try:
            return AdEMAMix(parameters, lr=lr, **settings)
        except ValueError as error:
            msg = f"{error} @ optimizer.name"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Have a warmup that was left out end with the run."""
        optimizer = store.optimizer
        if not isinstance(optimizer, AdEMAMix):
            run.log.info("ademamix.unused", optimizer=type(optimizer).__name__)
            return
        for group in optimizer.param_groups if self._warms_up_all_along else ():
            group["warmup_steps"] = run.config.train.steps
        first = optimizer.param_groups[0]
        run.log.info("ademamix.started", alpha=first["alpha"], warmup_steps=first["warmup_steps"])
