"""Records torch's operators and GPU kernels in a part of the run, by torch.profiler."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

TAKEN = "torch.profiler is recording already, so the trace has no operators"


class Operators:
    """Records from `start` to `stop`. Operators that run inside a named span belong to the span."""

    def __init__(self, device: torch.device) -> None:
        kinds = {"CPU", device.type.upper()} & ProfilerActivity.__members__.keys()
        activities = [ProfilerActivity.__members__[kind] for kind in sorted(kinds)]
        self._profile = torch.profiler.profile(activities=activities)
        self._running = False

    @staticmethod
    def in_use() -> bool:
        """Return whether torch.profiler is recording already.

        Torch allows only one recording at a time.
        """
        return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]  # noqa: SLF001 - no public way to ask

    def start(self) -> None:
        """Start recording."""
        self._profile.start()
        self._running = True

    def span(self, name: str) -> AbstractContextManager[Any]:
        """Return a context that torch.profiler records under `name`."""
        return torch.profiler.record_function(name)

    def stop(self) -> None:
        """Stop recording; idempotent."""
        if self._running:
            self._running = False
            self._profile.stop()

    def trace(self) -> dict[str, Any]:
        """Return the recording in Chrome's trace format; call `stop` before."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(os.fspath(path))
            trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return trace
