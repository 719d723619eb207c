"""Passes points to a run of MLflow, in batches that a thread sends."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mlflow.entities import Metric, Param

from neaptide.run.signals import Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlflow import MlflowClient

    from neaptide_toolkit.loggers import WrittenPoints

_METRICS, _PARAMS = 1000, 100
"""The most that MLflow takes in one batch."""
_LONGEST = 500
"""Characters of a param's value that every store of MLflow takes."""


class MlflowSink:
    """A run of MLflow. An error of the thread is raised by the next call.

    Args:
        client: of the tracking server.
        written: what the server has of the run.
        flush_seconds: a point is sent if this time has passed since the last batch, unless this
            batch is still on its way. So no step waits for the server.
    """

    def __init__(self, client: MlflowClient, written: WrittenPoints, flush_seconds: float) -> None:
        self._client = client
        self._written = written
        self._flush_seconds = flush_seconds
        self._flushed = time.monotonic()
        self._pending: list[tuple[int, dict[str, Any], int]] = []
        self._sending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mlflow")

    def start(
        self,
        experiment: str,
        name: str | None,
        tags: Mapping[str, str],
        settings: Mapping[str, Any],
    ) -> list[str]:
        """Make a run, or go on with that of a resumed one.

        Returns:
            The settings that have changed since the run began: MLflow keeps the first values.
        """
        params = {key: value[:_LONGEST] for key, value in _flat(settings)}
        known: dict[str, str] = {}
        if self._written.run is None:
            run = self._client.create_run(experiment, tags=dict(tags), run_name=name)
            self._written.start(run.info.run_id)
        else:
            run = self._client.get_run(self._written.run)
            known = run.data.params
            self._client.update_run(run.info.run_id, status="RUNNING")
            self._written.start(run.info.run_id)
        self._run: str = run.info.run_id
        new = [Param(key, value) for key, value in params.items() if key not in known]
        for start in range(0, len(new), _PARAMS):
            self._client.log_batch(self._run, params=new[start : start + _PARAMS])
        return [key for key in params if key in known and known[key] != params[key]]

    def begin(self, step: int) -> None:
        """Leave out what MLflow has of the updates after `step`."""
        self._flush(wait=True)
        self._written.begin(step)

    def phase(self, step: int, name: str) -> None:
        """Set the tag `phase`: a metric of MLflow is a number."""
        self._add(step, {"phase": name})

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Add metrics."""
        self._add(step, values)

    def close(self, error: BaseException | None) -> None:
        """Send what is pending, and tell how the run ended."""
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)
        status = "FINISHED" if error is None else "KILLED" if stopped else "FAILED"
        try:
            self._flush(wait=True)
            self._client.set_terminated(self._run, status=status)
        finally:
            self._thread.shutdown()
            self._written.close()

    def _add(self, step: int, values: Mapping[str, Any]) -> None:
        new = self._written.new(step, values)
        if new:
            self._pending.append((step, new, int(time.time() * 1000)))
        if time.monotonic() - self._flushed >= self._flush_seconds:
            self._flush()

    def _flush(self, *, wait: bool = False) -> None:
        if self._sending is not None:
            if not wait and not self._sending.done():
                return
            sending, self._sending = self._sending, None
            sending.result()
        self._flushed = time.monotonic()
        points, self._pending = self._pending, []
        if points:
            self._sending = self._thread.submit(self._send, points)
        if wait and self._sending is not None:
            sending, self._sending = self._sending, None
            sending.result()

    def _send(self, points: list[tuple[int, dict[str, Any], int]]) -> None:
        metrics = [
            Metric(key, float(value), at, step)
            for step, values, at in points
            for key, value in values.items()
            if key != "phase"
        ]
        for start in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + _METRICS])
        phases = [values["phase"] for _, values, _ in points if "phase" in values]
        if phases:
            self._client.set_tag(self._run, "phase", phases[-1])
        for step, values, _ in points:
            self._written.add(step, values)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting as `section.name` and text; what is not set is left out."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)
