"""A run that a signal reaches at its n-th line of Python, for many n; prints a JSON line for each.

`signalled.py ROOT SIGNAL TIMES FIRST STRIDE`: every run is a forked child, TIMES is how often the
signal is sent. Lines are counted in Neaptide's own modules, from the first batch on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from support import tiny_trainer

import neaptide
from neaptide import NeaptideError
from neaptide.api.rng import seed_all
from neaptide.checkpoint import newest_valid

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 4
CORE = str(Path(neaptide.__file__).parent)


class Bell:
    """Sends the signal to this process at the n-th line."""

    def __init__(self, number: int, at: int, times: int) -> None:
        self._number, self._times = number, times
        self.left = at

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        del argument
        if not frame.f_code.co_filename.startswith(CORE):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                for _ in range(self._times):
                    os.kill(os.getpid(), self._number)
        return self


def fit(directory: Path, bell: Bell | None) -> str:
    run = {"dir": str(directory), "checkpoint_every": 2, "keep": 2}
    seed_all(0)
    trainer, batches = tiny_trainer({"run": run, "train": {"steps": STEPS}})

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            for batch in batches:
                if bell is not None and sys.gettrace() is None:
                    sys.settrace(bell)
                    sys._getframe().f_back.f_trace = bell  # type: ignore[union-attr]  # settrace sees new frames only
                yield batch

    try:
        with trainer:
            try:
                return str(trainer.fit(Batches(), validation=batches[:1], resume="auto")["digest"])
            finally:
                sys.settrace(None)
    except NeaptideError as error:
        return f"{getattr(error, 'exit_code', 1)} {error}"


def child(directory: Path, answer: int, bell: Bell) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        ended = fit(directory, bell)
    except BaseException:  # noqa: BLE001 - shown by the test that reads it
        ended = traceback.format_exc()
    same = handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    os.write(answer, json.dumps({"ended": ended, "left": bell.left, "handlers": same}).encode())
    os._exit(0)


def attempt(directory: Path, number: int, times: int, at: int) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(directory, writing, Bell(number, at, times))
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    newest, warnings = newest_valid(directory / "checkpoints")
    strays = [path.name for path in (directory / "checkpoints").glob(".*")]
    return {
        **(json.loads(text) if text else {"ended": "", "left": 0}),
        "at": at,
        "status": status,
        "newest": newest.name if newest else "",
        "skipped": warnings,
        "strays": strays,
        "resumed": fit(directory, None),
    }


def main(root: str, name: str, times: str, first: str, stride: str) -> None:
    torch.set_num_threads(1)
    directory, at = Path(root) / "run", int(first)
    sys.stdout.write(json.dumps(fit(Path(root) / "whole", None)) + "\n")
    while True:
        found = attempt(directory, getattr(signal, name), int(times), at)
        shutil.rmtree(directory)
        sys.stdout.write(json.dumps(found) + "\n")
        if found["left"] > 0:
            return
        at += int(stride)


if __name__ == "__main__":
    main(*sys.argv[1:])
