"""Base class of plugins that show a run's records in another tool."""

from .logger import LoggerPlugin, LogSink, check_installed, settings_of
from .written import WrittenPoints

__all__ = ["LogSink", "LoggerPlugin", "WrittenPoints", "check_installed", "settings_of"]
