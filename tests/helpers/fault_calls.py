"""Calls to the system that fail, or at which the process is killed: the n-th of each kind."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, Any, Self

import attrs
from fault_run import fit
from fault_verdicts import Fault, Verdict, auto, judged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EMFILE", "EACCES", "ESTALE")
CALLS: dict[str, tuple[int, ...]] = {
    "open": (1, 2, 5, 9, 20, 40, 60),
    "read": (1, 2, 5, 20),
    "write": (1, 2, 5, 10, 20),
    "fsync": (1, 2, 5, 10),
    "close": (1, 2, 5, 20),
    "mkdir": (1, 2),
    "replace": (1, 2, 5),
    "stat": (1, 2, 5, 20),
    "fstat": (1, 2, 5, 20),
    "lstat": (1, 2),
    "listdir": (1, 2),
    "scandir": (1,),
}
"""Which calls fail, each once."""


@attrs.define
class Failing:
    """Strikes at the `at`-th call of one kind that is about a file below `root`."""

    root: Path
    call: str
    at: int
    strike: Callable[[], None]
    count: int = 0
    _real: Any = None

    def __enter__(self) -> Self:
        self._real = getattr(os, self.call)
        setattr(os, self.call, self._counting)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(os, self.call, self._real)

    def _counting(self, *arguments: Any, **options: Any) -> Any:
        concerned = self._is_concerned(*arguments[:1], **options)
        self.count += concerned
        strikes = concerned and self.count == self.at
        if strikes and self.call == "close":
            self._real(*arguments)  # it is closed, whatever is told
        if strikes:
            self.strike()
        return self._real(*arguments, **options)

    def _is_concerned(self, path: Any = ".", **options: Any) -> bool:
        folder = options.get("dir_fd", options.get("src_dir_fd"))
        descriptor = path if isinstance(path, int) else folder
        try:
            if descriptor is not None:
                path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - `Path` calls what is counted
        except OSError:
            return False
        return os.fspath(path).startswith(str(self.root))


def failing(run: Path, call: str, at: int, error: str) -> Failing:
    """Let a call fail with an error, once."""
    number = getattr(errno, error)

    def strike() -> None:
        raise OSError(number, os.strerror(number))

    return Failing(run, call, at, strike)


def killing(run: Path, call: str, at: int) -> Failing:
    """Kill the process at a call."""
    return Failing(run, call, at, lambda: os.kill(os.getpid(), signal.SIGKILL))


def _committed(call: str, at: int, error: str) -> Callable[[Path], Verdict]:
    def commit(run: Path) -> Verdict:
        with failing(run, call, at, error) as fault:
            # Compared with the run's own end by what comes after: without the fault.
            found = judged(lambda: fit(run, "auto"), "")
        if fault.count < at:
            return Verdict("unreached")
        return Verdict("survived", found.said) if found.kind == "accepted" else found

    return commit


def calls() -> Iterator[Fault]:
    """Yield a run for each call, number and error."""
    for call, numbers in CALLS.items():
        for at in numbers:
            for error in ERRORS:
                yield Fault(f"{error} at {call} {at}", _committed(call, at, error), auto)
