"""Base class of plugins that show a run's records in another tool."""

from .logger import LoggerPlugin, Sink, check_installed, settings_of
from .written import Written

__all__ = ["LoggerPlugin", "Sink", "Written", "check_installed", "settings_of"]
