"""The command line's frame: the verb `run`, and what finds and serves the verbs shipped."""

from .app import main

__all__ = ["main"]
