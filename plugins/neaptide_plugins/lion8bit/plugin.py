"""Builds the optimizer for runs that name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, NoConfig, Plugin, hookimpl
from neaptide.config import structure_options

from .config import SPEC, Lion8bitOptions
from .optimizer import Lion8bit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from neaptide import ParameterStore, Run


@attrs.define(eq=False)
class Lion8bitPlugin(Plugin[NoConfig]):
    """Builds `[optimizer] name = "lion8bit"`."""

    @hookimpl
    def configure_optimizer(
        self, model: nn.Module, name: str, lr: float, options: Mapping[str, Any]
    ) -> Lion8bit | None:
        """Build it over the trainable parameters."""
        if name != SPEC.name:
            return None
        chosen = structure_options(Lion8bitOptions, options, "optimizer", "options")
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        try:
            return Lion8bit(parameters, lr=lr, **attrs.asdict(chosen, recurse=False))
        except ValueError as error:
            msg = f"{error} @ optimizer.name"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Say so where another optimizer is used."""
        if not isinstance(store.optimizer, Lion8bit):
            run.log.info("lion8bit.unused", optimizer=type(store.optimizer).__name__)
