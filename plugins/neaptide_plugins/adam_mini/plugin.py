"""The plugin that builds `AdamMini` for a run."""

from __future__ import annotations

from neaptide_toolkit.optimizers import OptimizerPlugin

from .config import SPEC
from .optimizer import AdamMini


class AdamMiniPlugin(OptimizerPlugin):
    """Builds `[optimizer] name = "adam-mini"`."""

    spec = SPEC
    optimizer = AdamMini
