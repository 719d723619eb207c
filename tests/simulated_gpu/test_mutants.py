"""Each wait, hold, event and ticket of the device code is needed: without it a run is told.

A mutant lacks one of them. It is told if a scenario races, raises, or gives other bits. The tests
fork, which autograd allows in a process without a backward only: `run.py` runs them alone.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import traceback
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import simulated_gpu
from waits import Mutant, import_as, mutants, unchanged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STREAMING = "neaptide_plugins.layer_streaming."
MODULES = [
    "neaptide_toolkit.offload.lanes",
    "neaptide_plugins.optimizer_offload.lanes",
    "neaptide_plugins.optimizer_offload.host_state",
    STREAMING + "calls.inputs",
    STREAMING + "store",
    STREAMING + "streaming",
    STREAMING + "updates.blockwise",
    STREAMING + "updates.host_gradients",
    STREAMING + "weights.block",
    STREAMING + "weights.residency",
]
OF_THE_CPU = {"ticket.finish()", "self.finish()", "self._last.finish()"}
"""Of the lane that is a thread, which a device does not use; the tests of lanes tell these."""

TOLD, NOT_TOLD = 3, 0
"""How a child ends."""


def in_child(work: Callable[[], int]) -> int:
    """Run `work` in a fork of this process, which has imported no plugin; return its status."""
    child = os.fork()
    if child == 0:
        _end(work)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _end(work: Callable[[], int]) -> NoReturn:
    signal.alarm(120)
    status = 1
    try:
        status = work()
    except BaseException:  # noqa: BLE001 - a child must not go on with the parent's work
        traceback.print_exc()
    os._exit(status)


def told(mutant: Mutant, expected: dict[str, Any]) -> int:
    import_as(mutant)
    from scenarios_on_device import SCENARIOS

    for name, scenario in SCENARIOS.items():
        simulated_gpu.reset()
        try:
            found = scenario()
        except Exception as error:  # noqa: BLE001 - whatever the missing wait leads to
            return _tells(mutant, name, repr(error))
        gc.collect()  # what is freed now is freed while its copies run
        if races := simulated_gpu.races():
            return _tells(mutant, name, races[0])
        if found != expected[name]:
            return _tells(mutant, name, "other bits")
    return NOT_TOLD


def _tells(mutant: Mutant, scenario: str, how: str) -> int:
    print(f"{mutant}: in {scenario!r}: {how.splitlines()[0]}")  # noqa: T201 - shown where a test fails
    sys.stdout.flush()
    return TOLD


def as_it_is(path: Path) -> int:
    from scenarios_on_device import SCENARIOS

    found = {name: scenario() for name, scenario in SCENARIOS.items()}
    path.write_bytes(pickle.dumps((found, simulated_gpu.races())))
    return 0


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("expected") / "results"
    assert in_child(lambda: as_it_is(path)) == 0
    found, races = pickle.loads(path.read_bytes())
    assert races == []
    return found


@cache
def all_mutants() -> list[Mutant]:
    return [one for module in MODULES for one in mutants(module) if one.what not in OF_THE_CPU]


@pytest.mark.parametrize("mutant", all_mutants(), ids=str)
def test_a_missing_wait_is_told(mutant: Mutant, expected: dict[str, Any]) -> None:
    assert mutant.module not in sys.modules
    assert in_child(lambda: told(mutant, expected)) == TOLD


@pytest.mark.parametrize("module", [MODULES[0], MODULES[-1]])
def test_a_module_without_a_change_is_not_told(module: str, expected: dict[str, Any]) -> None:
    assert in_child(lambda: told(unchanged(module), expected)) == NOT_TOLD
