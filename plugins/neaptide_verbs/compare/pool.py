"""Trains several trials (training runs) in parallel worker processes."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import attrs

from neaptide.errors import NeaptideError, RunDirectoryError
from neaptide.io.folder import Folder
from neaptide.run.signals import Interrupted, StopRequest

from .trials import Result, TrainingTrial, read_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    Report = Callable[[TrainingTrial, Result, bool], None]


_LOG = "workers.log"
_LOOK = 0.2
"""Seconds between two checks for a signal."""


class TrialError(NeaptideError):
    """A trial raised an error, so the comparison cannot continue."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # the code of the trial's error


@attrs.frozen
class _TrainedTrial:
    trial: TrainingTrial
    answer: dict[str, Any]


class Pool:
    """Trains trials in `jobs` processes with `threads` threads each. The pool is a context manager.

    Results are stored below `root`, so a stopped comparison can continue.
    """

    def __init__(
        self, root: Path, jobs: int, threads: int, report: Report, stop: StopRequest
    ) -> None:
        self._root = root
        self._stop = stop
        self._report = report
        self._jobs = jobs
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._workers: list[subprocess.Popen[str]] = []
        self._waiting: queue.SimpleQueue[TrainingTrial | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_TrainedTrial] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the workers. A worker that is training saves its trial first."""
        if error is not None:
            self._begin_no_more()
        for _ in self._threads:
            self._waiting.put(None)
        for worker in self._workers:
            if error is not None and worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        for thread in self._threads:
            thread.join()

    def _begin_no_more(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()

    def train(self, trials: Sequence[TrainingTrial]) -> list[Result]:
        """Return the results of `trials`, in the order of `trials`.

        Each result is reported as soon as it is ready. Raises TrialError as soon as a trial fails,
        Interrupted after a signal or after a worker was stopped.
        """
        results: dict[str, Result] = {}
        missing: dict[str, TrainingTrial] = {}
        for trial in trials:
            kept = read_result(trial.directory(self._root), trial)
            if kept is None:
                missing.setdefault(trial.key, trial)
            elif trial.key not in results:
                results[trial.key] = kept
                self._report(trial, kept, True)
        self._start(len(missing))
        for trial in missing.values():
            self._waiting.put(trial)
        for _ in missing:
            done = self._next()
            result = _result_of(done)
            results[done.trial.key] = result
            self._report(done.trial, result, False)
        return [results[trial.key] for trial in trials]

    def _next(self) -> _TrainedTrial:
        while True:
            if self._stop.received is not None:
                msg = "stopped by a signal; repeat the command to continue"
                raise Interrupted(self._stop.received, msg)
            with suppress(queue.Empty):
                return self._done.get(timeout=_LOOK)

    def _start(self, needed: int) -> None:
        for _ in range(min(self._jobs, needed) - len(self._threads)):
            with self._log() as log:
                worker = subprocess.Popen(
                    [sys.executable, "-m", "neaptide_verbs.compare.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    text=True,
                    # A worker in this process's session would receive Ctrl-C twice, from the
                    # terminal and from this process, and would end without saving.
                    start_new_session=True,
                )
            thread = threading.Thread(target=self._feed, args=(worker,), daemon=True)
            self._workers.append(worker)
            self._threads.append(thread)
            thread.start()

    def _log(self) -> IO[str]:
        try:
            log = Folder(self._root).open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            return os.fdopen(log, "a", encoding="utf-8")
        except OSError as error:
            msg = f"cannot write {self._root / _LOG}: {error.strerror}; give another --out DIR"
            raise RunDirectoryError(msg) from error

    def _feed(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdin is not None, "opened as a pipe"
        assert worker.stdout is not None, "opened as a pipe"
        while (trial := self._waiting.get()) is not None:
            asked = {**attrs.asdict(trial), "directory": str(trial.directory(self._root))}
            try:
                worker.stdin.write(json.dumps(asked) + "\n")
                worker.stdin.flush()
                answer = json.loads(worker.stdout.readline())
                if answer.get("logged"):
                    answer["error"] += f"; see {self._root / _LOG}"
            except (OSError, ValueError):
                code = worker.wait()
                text = f"the process that trained it ended with {_named(code)}"
                if code == -signal.SIGKILL:  # the kernel sends it when memory runs out
                    text += ", probably for lack of memory; train fewer at once with --jobs"
                answer = {"error": f"{text}; see {self._root / _LOG}", "exit_code": 1}
                if code in {-signal.SIGTERM, -signal.SIGINT}:
                    answer = {"stopped": "stopped by a signal before it started"}
            self._done.put(_TrainedTrial(trial, answer))
            if "stopped" in answer or worker.poll() is not None:
                break
        with worker:  # closes the pipes, which ends the worker, and waits for the worker's end
            pass


def _named(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _result_of(done: _TrainedTrial) -> Result:
    if "result" in done.answer:
        return Result(**done.answer["result"])
    if "stopped" in done.answer:
        raise Interrupted(signal.SIGINT, done.answer["stopped"])
    msg = f"{done.answer['error']} [{done.trial.label}]"
    raise TrialError(msg, done.answer["exit_code"])
