"""Each wait, hold, event and ticket of the device code is needed: without it a run is told.

A mutant lacks one of them, or waits on the device where the host should. It is told if a scenario
races, raises, or gives other bits. The tests fork, which autograd allows in a process without a
backward only: `run.py` runs them alone.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import simulated_gpu
import waits
from waits import THE_HOST, Mutant, import_as, modules, mutants, unchanged

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = (
    "neaptide_toolkit.offload",
    "neaptide_plugins.optimizer_offload",
    "neaptide_plugins.layer_streaming",
)
OFFLOAD, OFFLOAD_STATE, STREAMING = PACKAGES
OF_THE_CPU = "of the lane that is a thread: a device uses it for a disk; the tests of lanes tell it"
OF_FILES = "of threads that read a file into RAM: the tests of mapped tensors tell it"
BY_CTYPES = "it orders a read by ctypes, which the device does not see"
NEAR = "it orders nothing: the host is not far ahead of the device, which keeps memory small"
BEHIND = "the weights leave first, in the same queue and behind the same work"
BY_HAND = "only after a change of state by hand, or of states in several pieces: in no scenario"
LAST_TWO = "the computation waited for inputs that came back; the host for most that were left over"
EXCEPTIONS = {
    (f"{OFFLOAD}.host_lanes", "wait", "self.finish()"): OF_THE_CPU,
    (f"{OFFLOAD}.host_lanes", "run", "ticket.finish()"): OF_THE_CPU,
    (f"{OFFLOAD}.host_lanes", "close", "self._last.finish()"): OF_THE_CPU,
    (f"{OFFLOAD}.host_lanes", "close", "self._failed.finish()"): OF_THE_CPU,
    (f"{OFFLOAD}.host_lanes", "submit", "ticket.finish()"): OF_THE_CPU,
    (f"{OFFLOAD}.disk.mapped_tensors", "__exit__", "self.finish()"): OF_FILES,
    (f"{OFFLOAD}.disk.mapped_tensors", "own", "self.finish()"): OF_FILES,
    (f"{OFFLOAD}.disk.mapped_tensors", "_populating", "memory.nbytes"): "no wait: a size",
    (
        f"{OFFLOAD_STATE}.lanes",
        "submit",
        f"{THE_HOST}self._stream.submit(what, work, tickets).finish()",
    ): "a copy of pageable memory blocks its thread anyway; what follows on the device waits",
    (f"{OFFLOAD_STATE}.plugin", "_bring_back", "self._mechanism.finish()"): (
        "no wait: it ends the eviction, as the store does at the next use of the state"
    ),
    (
        f"{STREAMING}.calls.call",
        "finish",
        "self.arguments.settle()",
    ): "no wait: it drops references",
    (f"{STREAMING}.calls.inputs", "_keep_near", ".finish()"): NEAR,
    (f"{STREAMING}.calls.inputs", "_keep_near", "ticket"): NEAR,
    (f"{STREAMING}.calls.inputs", "_keep_near", "self._under_way.popleft().finish()"): NEAR,
    (f"{STREAMING}.calls.inputs", "_fetch", "waiting.host.read = its ticket"): LAST_TWO,
    (f"{STREAMING}.calls.inputs", "_moved", "the ticket buffer.read"): LAST_TWO,
    (f"{STREAMING}.updates.state_slots", "leave", "the ticket done"): BEHIND,
    (f"{STREAMING}.updates.state_slots", "renew", "home.arrival.wait()"): BY_HAND,
    (f"{STREAMING}.updates.state_slots", "_fill", "the ticket home.left"): BY_HAND,
    (f"{STREAMING}.weights.touched", "look", "block.settle()"): BY_CTYPES,
}
"""What is found and needs not be told, by module and function, and why."""

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
    path.write_bytes(pickle.dumps((found, simulated_gpu.races(), modules_of_others())))
    return 0


def modules_of_others() -> list[str]:
    """Return the imported modules that import none of the modules with waits."""
    files = {name: str(getattr(one, "__file__", "")) for name, one in sys.modules.items()}
    mine = ("neaptide_", "__main__")
    return [
        name
        for name, file in files.items()
        if not name.startswith(mine) and Path(file).parent != Path(waits.__file__).parent
    ]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("expected") / "results"
    assert in_child(lambda: as_it_is(path)) == 0
    found, races, others = pickle.loads(path.read_bytes())
    assert races == []
    for name in others:  # once here, and not in every child
        with suppress(ImportError):
            import_module(name)
    return found


@cache
def found() -> list[Mutant]:
    return [one for package in PACKAGES for module in modules(package) for one in mutants(module)]


def keys(mutant: Mutant) -> set[tuple[str, str, str]]:
    """Return what an exception may say of a mutant; one that waits less is one without the wait."""
    whats = (mutant.what, mutant.what.removeprefix(THE_HOST))
    return {(mutant.module, mutant.function, what) for what in whats}


def needed() -> list[Mutant]:
    return [one for one in found() if not keys(one) & EXCEPTIONS.keys()]


def every_fourth() -> list[Any]:
    """Return what is needed; three of four are slow. A helper for that imports too much."""
    return [
        pytest.param(one, id=str(one), marks=[pytest.mark.slow] if place % 4 else [])
        for place, one in enumerate(needed())
    ]


@pytest.mark.parametrize("mutant", every_fourth())
def test_a_missing_wait_is_told(mutant: Mutant, expected: dict[str, Any]) -> None:
    assert mutant.module not in sys.modules
    assert in_child(lambda: told(mutant, expected)) == TOLD


@pytest.mark.parametrize("module", [f"{OFFLOAD}.lanes", f"{STREAMING}.weights.residency"])
def test_a_module_without_a_change_is_not_told(module: str, expected: dict[str, Any]) -> None:
    assert in_child(lambda: told(unchanged(module), expected)) == NOT_TOLD


def test_an_exception_is_of_something_that_is_there() -> None:
    assert EXCEPTIONS.keys() <= set().union(*map(keys, found()))
