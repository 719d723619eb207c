"""A process that forks a run for each line it reads, and kills it; and the faults made by it.

A line is `[run, place, at]`, where the place is a hook, another place of `fault_hooks`, or a call
to the system. The answer is the status of the child: -9 where it was killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from bombs import Bomb
from fault_calls import CALLS, killing
from fault_hooks import HOOKS, PLACES, fit_with, times
from fault_run import fit
from fault_verdicts import Fault, Verdict, without_the_plugin
from support import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _child(run: str, place: str, at: int) -> int:
    try:
        if place in CALLS:
            with killing(Path(run), place, at):
                fit(Path(run), "auto")
        else:
            fit_with(Path(run), place, Bomb(at, _die))
    except BaseException:  # noqa: BLE001 - shown by the test that reads it
        traceback.print_exc()
        return 1
    return 0


def serve() -> None:
    """Answer each line."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        fit(Path(directory) / "run")  # imports everything before the first fork
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(_child(*json.loads(line)))
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


@cache
def server() -> Any:
    """Start the process, once."""
    return subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def end_server() -> None:
    """End the process, if it was started."""
    if server.cache_info().currsize:
        server().communicate()
        server.cache_clear()


def _committed(place: str, at: int) -> Callable[[Path], Verdict]:
    def commit(run: Path) -> Verdict:
        server().stdin.write(json.dumps([str(run), place, at]) + "\n")
        server().stdin.flush()
        status = int(server().stdout.readline())
        if status == -signal.SIGKILL:
            return Verdict("survived")
        return Verdict("unreached" if status == 0 else "foreign", f"exit status {status}")

    return commit


def kills() -> Iterator[Fault]:
    """Yield a run for each place and number."""
    numbers = {place: times(place) for place in (*HOOKS, *PLACES)}
    for place, each in {**numbers, **CALLS}.items():
        for at in each:
            yield Fault(f"kill -9 in {place} {at}", _committed(place, at), without_the_plugin)


if __name__ == "__main__":
    serve()
