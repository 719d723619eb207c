"""The plugin that builds `AdEMAMix` for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide_toolkit.optimizers import OptimizerPlugin

from .config import SPEC, AdEMAMixOptions
from .optimizer import AdEMAMix

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neaptide import Run


@attrs.define(eq=False)
class AdEMAMixPlugin(OptimizerPlugin):
    """Builds `[optimizer] name = "ademamix"`."""

    spec = SPEC
    optimizer = AdEMAMix

    _warms_up_all_along: bool = attrs.field(init=False, default=False)

    def build(self, model: nn.Module, lr: float, options: AdEMAMixOptions) -> torch.optim.Optimizer:
        """Build the optimizer; if `warmup_steps` is not set, `started` sets the option later."""
        self._warms_up_all_along = options.warmup_steps is None
        options = attrs.evolve(options, warmup_steps=options.warmup_steps or 0)
        return super().build(model, lr, options)

    def started(self, run: Run, optimizer: torch.optim.Optimizer) -> None:
        """Set `warmup_steps` to `train.steps` if the option is not set, and log the values."""
        for group in optimizer.param_groups if self._warms_up_all_along else ():
            group["warmup_steps"] = run.config.train.steps
        first = optimizer.param_groups[0]
        run.log.info("ademamix.started", alpha=first["alpha"], warmup_steps=first["warmup_steps"])
