"""The plugin that builds `TorchaoAdamw` for a run."""

from __future__ import annotations

from neaptide_toolkit.optimizers import OptimizerPlugin

from .config import SPEC
from .optimizer import TorchaoAdamw


class TorchaoAdamwPlugin(OptimizerPlugin):
    """Builds `[optimizer] name = "torchao-adamw"`."""

    spec = SPEC
    optimizer = TorchaoAdamw
