"""The plugin that builds `Bitsandbytes8bit` for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide import ConfigError
from neaptide_toolkit.optimizers import OptimizerPlugin

from .config import SPEC
from .optimizer import Bitsandbytes8bit

if TYPE_CHECKING:
    import torch

    from neaptide import Run

_WHERE = "@ optimizer.options.paged"


class BitsandbytesPlugin(OptimizerPlugin):
    """Builds `[optimizer] name = "bitsandbytes"`."""

    spec = SPEC
    optimizer = Bitsandbytes8bit

    def started(self, run: Run, optimizer: torch.optim.Optimizer) -> None:
        """Raise ConfigError where CUDA cannot move pages, or another plugin moves the state."""
        if not any(group["paged"] for group in optimizer.param_groups):
            return
        if run.device.type != "cuda":
            msg = f"a paged optimizer needs a GPU (got {run.device}); set paged = false {_WHERE}"
            raise ConfigError(msg)
        moving = {"layer-streaming", "optimizer-offload"} & set(run.config.plugins)
        if moving:
            names = " and ".join(sorted(moving))
            msg = f"{names} and CUDA would both move the optimizer's state; set paged = false "
            raise ConfigError(msg + _WHERE)
