"""Learning rates that follow a schedule over the updates of a run."""

from .config import SPEC

__all__ = ["SPEC"]
