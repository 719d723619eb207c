"""The command line: the verb (subcommand) `run`, and the loader of verbs from entry points."""

from .app import main

__all__ = ["main"]
