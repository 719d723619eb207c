"""The command line. Has the verb (subcommand) `run` and loads other verbs from entry points."""

from .app import main

__all__ = ["main"]
