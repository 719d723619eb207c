"""What a tool has of a run already: for tools whose points cannot be taken back."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from neaptide import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide.io.folder import Folder

_FILE = "run.json"
_LARGEST = 1 << 24


class WrittenPoints:
    """The name of the tool's run, and the last step of each curve, in the plugin's folder.

    A resumed run finds both. It repeats the updates after its checkpoint bit for bit, so their
    points, which the tool has, are left out, and the log says which. (With changed settings, points
    of before the change stay.) Without a folder a run cannot be continued.

    Args:
        folder: the plugin's folder in the run directory, or None.
        log: the log of the run.
    """

    def __init__(self, folder: Folder | None, log: Any) -> None:
        self._folder, self._log = folder, log
        self._length = 0
        found = _read(folder) if folder is not None else {}
        self.run: str | None = found.get("run")
        """The tool's name of its run; None: a new run begins."""
        self.rows: int = found.get("rows", 0)
        """How often `add` was called."""
        self._last: dict[str, int] = found.get("last", {})
        self._known: dict[str, int] = {}
        self._descriptor: int | None = None

    def start(self, run: str) -> None:
        """Keep the name of the tool's run from now on. Another run has no points yet."""
        if run != self.run:
            self.rows, self._last = 0, {}
        self.run = run
        if self._folder is not None and self._descriptor is None:
            self._descriptor = self._folder.open(_FILE, os.O_WRONLY | os.O_CREAT)
        self._save()

    def begin(self, step: int) -> None:
        """Leave out, from now on, each point at or before the last step of its curve."""
        self._known = dict(self._last)
        last = max(self._last.values(), default=step)
        if last > step:
            self._log.info("logger.points_kept", tool_run=self.run, first=step + 1, last=last)

    def new(self, step: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the points that the tool does not have."""
        return {name: value for name, value in values.items() if step > self._known.get(name, -1)}

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """The tool has these points now."""
        self.rows += 1
        for name in values:
            self._last[name] = max(step, self._last.get(name, -1))
        self._save()

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _save(self) -> None:
        """Write in one call, and never less than before: a killed process leaves a whole file."""
        if self._descriptor is not None:
            text = json.dumps({"run": self.run, "rows": self.rows, "last": self._last})
            self._length = max(self._length, len(text), os.fstat(self._descriptor).st_size)
            os.pwrite(self._descriptor, text.ljust(self._length).encode(), 0)


def _read(folder: Folder) -> dict[str, Any]:
    if folder.stat(_FILE) is None:
        return {}
    try:
        found = json.loads(folder.read(_FILE, _LARGEST))
        steps = (found["rows"], *found["last"].values())
        whole = isinstance(found["run"], str) and all(type(step) is int for step in steps)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        msg = f"{folder.path / _FILE} is damaged; remove it to log to a new run of the tool"
        raise ConfigError(msg)
    return dict(found)
