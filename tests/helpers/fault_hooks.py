"""Exits and errors in hooks, in the loss, in the data and between steps, at the n-th call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from bombs import Bomb, bombed
from fault_run import fit
from fault_verdicts import Fault, Verdict, without_the_plugin

from neaptide import NeaptideError
from neaptide.hooks import hookspecs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UNASKED = {
    *("build_model", "build_data", "diagnose", "estimate_memory", "forecast"),
    *("propose_update", "around_propose", "provide_parameters", "configure_optimizer"),
    "around_predict",
}
"""Hooks that this run does not call, or that only one plugin may implement."""
HOOKS = sorted(
    name
    for name, value in vars(hookspecs).items()
    if hasattr(value, "neaptide_spec") and name not in UNASKED
)
PLACES = ("observe", "data")
ERRORS: dict[str, Callable[[], BaseException]] = {
    "sys.exit(0)": lambda: SystemExit(0),
    "sys.exit(3)": lambda: SystemExit(3),
    "KeyError": lambda: KeyError("x"),
    "MemoryError": MemoryError,
    "KeyboardInterrupt": KeyboardInterrupt,
    "OSError": lambda: OSError(5, "the user's own"),
}
ONCE = {
    *("around_evaluate", "around_save", "convert_model", "on_phase_enter", "on_phase_exit"),
    *("on_run_end", "on_run_start", "register_kernels"),
}
"""Hooks that this run calls once."""


def times(place: str) -> tuple[int, ...]:
    """Return which calls of a place are tried."""
    return (1,) if place in ONCE else (1, 2)


def _ticking(batches: list[Any], bomb: Bomb) -> Iterator[Any]:
    for batch in batches:
        bomb.tick()
        yield batch


class _Data:
    """Batches that may be read again."""

    def __init__(self, batches: list[Any], bomb: Bomb) -> None:
        self._read = partial(_ticking, batches, bomb)

    def __iter__(self) -> Iterator[Any]:
        return self._read()


def fit_with(run: Path, place: str, bomb: Bomb) -> str:
    """Resume the run with a bomb in a hook or another place."""
    if place == "observe":
        return fit(run, "auto", observe=lambda *_: bomb.tick())
    if place == "data":
        return fit(run, "auto", data=lambda batches: _Data(batches, bomb))
    return fit(run, "auto", plugins=[bombed(place, bomb)], allow_changes=True)


def _same(found: BaseException, planted: BaseException) -> bool:
    """Return whether an error is the planted one, which is told as it is, or holds it."""
    if isinstance(found, BaseExceptionGroup):
        return any(_same(one, planted) for one in found.exceptions)
    return found is planted


def _committed(place: str, make: Callable[[], BaseException], at: int) -> Callable[[Path], Verdict]:
    def commit(run: Path) -> Verdict:
        error = make()
        bomb = Bomb(at, error)
        try:
            said = fit_with(run, place, bomb)
        except NeaptideError as found:
            lines = str(found).splitlines()
            return Verdict("refused" if len(lines) == 1 else "untold", str(found))
        except BaseException as found:  # noqa: BLE001 - it is looked at
            return Verdict("refused" if _same(found, error) else "foreign", repr(found))
        if bomb.went_off:
            return Verdict("accepted", f"{error!r} was not raised to the caller ({said})")
        return Verdict("unreached")

    return commit


def hooks() -> Iterator[Fault]:
    """Yield a run for each place, number and error."""
    for place in (*HOOKS, *PLACES):
        for what, make in ERRORS.items():
            for at in times(place):
                yield Fault(
                    f"{what} in {place} {at}", _committed(place, make, at), without_the_plugin
                )
