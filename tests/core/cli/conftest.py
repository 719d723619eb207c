"""The command line, for every test here."""

from __future__ import annotations

from command_line import command, environment, folder, neaptide, start

__all__ = ["command", "environment", "folder", "neaptide", "start"]
