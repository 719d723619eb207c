"""Checks the project's name before training, and opens a run of Trackio at the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import ConfigError
from neaptide_toolkit.loggers import LoggerPlugin, WrittenPoints, check_installed, settings_of

from .config import TrackioConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Run
    from neaptide_toolkit.loggers import LogSink


@attrs.define(eq=False)
class TrackioPlugin(LoggerPlugin[TrackioConfig]):
    """An observer."""

    def __attrs_post_init__(self) -> None:
        """Raise ConfigError if the package trackio is missing."""
        check_installed("trackio", "neaptide-trackio", "trackio")

    def prepare(self, run: Run) -> Callable[[], LogSink] | None:
        """Check the directory that Trackio writes to, and return what opens a run there."""
        import trackio  # noqa: PLC0415 - it may be missing, and takes a second

        try:
            trackio.TRACKIO_DIR.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = (
                f"Trackio cannot write in {trackio.TRACKIO_DIR}: {error.strerror}; set TRACKIO_DIR "
                "to another directory @ plugins.trackio"
            )
            raise ConfigError(msg) from error

        def opened() -> LogSink:
            from .sink import TrackioSink  # noqa: PLC0415 - as above

            name = run.directory.name if run.directory is not None else None
            written = WrittenPoints(run.plugin_folder("trackio"), run.log)
            return TrackioSink(written, self.config, name, settings_of(run))

        return opened
