"""Converts the model's linear layers for the time of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from neaptide import ConfigError, Plugin, hookimpl

from .config import TorchaoFloat8Config
from .layers import convert

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from neaptide import Run

_NEEDED = (8, 9)
"""The compute capability of the first NVIDIA GPU that multiplies in float8."""


@attrs.define(eq=False)
class TorchaoFloat8(Plugin[TorchaoFloat8Config]):
    """Exchanges layers in `convert_model`, and exchanges them back at the end of the run."""

    _back: Callable[[], None] | None = attrs.field(init=False, default=None)

    @hookimpl
    def convert_model(self, model: nn.Module) -> None:
        """Exchange the layers; ConfigError if there is none that fits."""
        chosen = self.config
        try:
            self._back = convert(model, chosen.recipe, chosen.leave_out, emulate=chosen.emulate)
        except ValueError as error:
            msg = f"{error} @ plugins.torchao-float8"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Raise ConfigError if the hardware has no float8 and nothing emulates it."""
        if self.config.emulate or run.device.type == "cpu":
            return
        found = torch.cuda.get_device_capability(run.device) if run.device.type == "cuda" else None
        if found is None or found < _NEEDED:
            what = f"{run.device} of compute capability {found}" if found else str(run.device)
            msg = (
                f"float8 needs a GPU of compute capability {_NEEDED[0]}.{_NEEDED[1]} or more (got "
                f"{what}); set emulate = true @ plugins.torchao-float8.emulate"
            )
            raise ConfigError(msg)

    @hookimpl
    def on_run_end(self) -> None:
        """Exchange the layers back."""
        back, self._back = self._back, None
        if back is not None:
            back()
