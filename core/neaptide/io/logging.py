"""Sends events to the run's sink and, through the standard logger `neaptide`, to the console.

structlog's global configuration and all other loggers of the program stay unchanged.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from neaptide.errors import described
from neaptide.text import screen, shorten, visible

from .jsonable import jsonable
from .streams import Tolerant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, MutableMapping

    Sink = Callable[[MutableMapping[str, Any]], None]

_LONGEST_ERROR = 300
CONSOLE = logging.getLogger("neaptide")


class _SinkLogger:
    """The logger that structlog wraps. It passes each event to the sink and the standard logger."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink

    def _write(self, level: int, event: MutableMapping[str, Any]) -> None:
        stamped = {
            "time": datetime.now(UTC).isoformat(),
            "level": logging.getLevelName(level).lower(),
            **event,
        }
        if self._sink is not None:
            self._sink(stamped)
        if CONSOLE.isEnabledFor(level):
            CONSOLE.log(level, "%s", readable(event), extra={"fields": stamped})

    def info(self, **event: Any) -> None:
        self._write(logging.INFO, event)

    def warning(self, **event: Any) -> None:
        self._write(logging.WARNING, event)

    def error(self, **event: Any) -> None:
        self._write(logging.ERROR, event)


def said(error: BaseException) -> str:
    """Return the type and text of an error in one line, cut after about 300 characters."""
    return shorten(described(error), _LONGEST_ERROR)


def readable(event: Mapping[str, Any]) -> str:
    """Return an event as one line: the event's name, and all fields that have a value."""
    fields = [
        f"{key}={value:.6g}"
        if isinstance(value, float)
        else f"{key}={visible(str(value), kept='')}"
        for key, value in event.items()
        if key != "event" and value is not None and str(value)
    ]
    return " ".join([event["event"], *fields])


def run_logger(sink: Sink | None = None) -> Any:
    """Return a bound structlog logger with `info`, `warning` and `error`."""
    return structlog.wrap_logger(
        _SinkLogger(sink),
        processors=[lambda _logger, _method, event: event],
        wrapper_class=structlog.BoundLogger,
    )


class StderrHandler(logging.Handler):
    """Writes to the current `sys.stderr`, because a live display may replace `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; if the write fails, drop the line."""
        stream = Tolerant(sys.stderr)
        try:
            text = self.format(record)
            if not isinstance(self.formatter, JsonFormatter):
                text = screen(text).replace("\n", "\n  ")  # no line looks like another message
            stream.write(f"{visible(text)}\n")
            stream.flush()
        except Exception:  # noqa: BLE001 - an error of formatting must not end the run
            self.handleError(record)


class JsonFormatter(logging.Formatter):
    """Formats an event with all fields of the event. Other log records become an event `log`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        fields = getattr(record, "fields", None) or {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "event": "log",
            "message": record.getMessage(),
        }
        return json.dumps(jsonable(fields))


@contextmanager
def json_lines(level: int = logging.INFO) -> Iterator[None]:
    """Inside the context, write Neaptide's events of at least `level` to stderr as lines of JSON.

    The logger's other handlers get no events until the context ends.
    """
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter())
    before = CONSOLE.handlers[:], CONSOLE.level, CONSOLE.propagate
    CONSOLE.handlers, CONSOLE.propagate = [handler], False
    CONSOLE.setLevel(level)
    try:
        yield
    finally:
        CONSOLE.handlers, _, CONSOLE.propagate = before
        CONSOLE.setLevel(before[1])
