"""Where events go: structlog lines to the run's sink, warnings also to the standard logger."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    Sink = Callable[[MutableMapping[str, Any]], None]

CONSOLE = logging.getLogger("neaptide")


class _SinkLogger:
    """The end of structlog's chain: hands each event to the sink, warnings to the console."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink

    def _write(self, level: str, event: MutableMapping[str, Any]) -> None:
        if self._sink is not None:
            self._sink({"time": datetime.now(UTC).isoformat(), "level": level, **event})
        if level != "info":
            fields = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            CONSOLE.log(logging.getLevelName(level.upper()), "%s %s", event["event"], fields)

    def info(self, **event: Any) -> None:
        self._write("info", event)

    def warning(self, **event: Any) -> None:
        self._write("warning", event)

    def error(self, **event: Any) -> None:
        self._write("error", event)


def run_logger(sink: Sink | None = None) -> Any:
    """Return a bound structlog logger with `info`, `warning` and `error`."""
    return structlog.wrap_logger(
        _SinkLogger(sink),
        processors=[lambda _logger, _method, event: event],
        wrapper_class=structlog.BoundLogger,
    )
