"""Built-in models: small real networks for quickstarts, tests and measurements."""

from .config import SPEC

__all__ = ["SPEC"]
