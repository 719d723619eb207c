"""The plugin that builds `Lion` for a run."""

from __future__ import annotations

from neaptide_toolkit.optimizers import OptimizerPlugin

from .config import SPEC
from .optimizer import Lion


class LionPlugin(OptimizerPlugin):
    """Builds `[optimizer] name = "lion"`."""

    spec = SPEC
    optimizer = Lion
