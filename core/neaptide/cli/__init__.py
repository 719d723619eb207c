"""The command line: the verb `run`, and the loader of the verbs from installed distributions."""

from .app import main

__all__ = ["main"]
