"""Writes the records of a run to an event file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import attrs

from neaptide import ConfigError
from neaptide.io.folder import Folder
from neaptide_toolkit.loggers import LoggerPlugin, check_installed

from .config import TensorboardConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Run
    from neaptide_toolkit.loggers import LogSink


@attrs.define(eq=False)
class Tensorboard(LoggerPlugin[TensorboardConfig]):
    """An observer. If it has no directory to write to, it logs a warning and does nothing."""

    learning_rate: ClassVar[str] = "train/lr"

    def __attrs_post_init__(self) -> None:
        """Raise ConfigError if the package tensorboard is missing."""
        check_installed("tensorboard", "neaptide[tensorboard]", "tensorboard")

    def prepare(self, run: Run) -> Callable[[], LogSink] | None:
        """Choose the directory; the first step creates the file."""
        if self.config.log_dir is not None:
            folder = _checked(Path(self.config.log_dir))
        elif (own := run.plugin_folder("tensorboard")) is not None:
            folder = own
        else:
            advice = "set run.dir or plugins.tensorboard.log_dir"
            run.log.warning("tensorboard.nothing_written", advice=advice)
            return None

        def opened() -> LogSink:
            from .event_file import EventFile  # noqa: PLC0415 - tensorboard may be missing

            return EventFile(folder, self.config.flush_seconds)

        return opened


def _checked(directory: Path) -> Folder:
    try:
        folder = Folder(directory, make=True)
        reason = "" if os.access(folder.path, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        msg = f"cannot write in {directory.resolve()}: {reason} @ plugins.tensorboard.log_dir"
        raise ConfigError(msg)
    return folder
