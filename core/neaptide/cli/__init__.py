"""The command line: one module a verb; only `run` imports torch."""

from .app import main

__all__ = ["main"]
