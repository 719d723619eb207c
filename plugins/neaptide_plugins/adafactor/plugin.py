"""The plugin that builds `Adafactor` for a run."""

from __future__ import annotations

from neaptide_toolkit.optimizers import OptimizerPlugin

from .config import SPEC
from .optimizer import Adafactor


class AdafactorPlugin(OptimizerPlugin):
    """Builds `[optimizer] name = "adafactor"`."""

    spec = SPEC
    optimizer = Adafactor
