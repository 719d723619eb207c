"""Built-in models: small networks for first runs, tests and measurements."""

from .config import SPEC

__all__ = ["SPEC"]
