"""The command line: the verb `run`, and the loader of the verbs that distributions ship."""

from .app import main

__all__ = ["main"]
