"""The plugin that builds `Lion8bit` for a run."""

from __future__ import annotations

from neaptide_toolkit.optimizers import OptimizerPlugin

from .config import SPEC
from .optimizer import Lion8bit


class Lion8bitPlugin(OptimizerPlugin):
    """Builds `[optimizer] name = "lion8bit"`."""

    spec = SPEC
    optimizer = Lion8bit
