"""The plugin that builds `Adam8bit` for a run."""

from __future__ import annotations

from neaptide_toolkit.optimizers import OptimizerPlugin

from .config import SPEC
from .optimizer import Adam8bit


class Adam8bitPlugin(OptimizerPlugin):
    """Builds `[optimizer] name = "adam8bit"`."""

    spec = SPEC
    optimizer = Adam8bit
