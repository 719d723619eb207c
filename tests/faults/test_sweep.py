"""One fault a run: it goes on to the same end, or one line says why not; nothing else changes."""

from __future__ import annotations

import os
import shutil
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
import torch
from fault_calls import calls
from fault_damage import damage
from fault_forged import forged
from fault_hooks import hooks
from fault_killed import end_server, kills
from fault_records import records
from fault_run import make_template
from fault_verdicts import FINE, Fault, Verdict, tried
from support import some

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAULTS = list(chain(damage(), records(), forged(), calls(), hooks(), kills()))
SAMPLE = 12
"""Every n-th fault is tried in each run of the tests, the others with the slow ones."""


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Return a run that was stopped, with a folder beside it, and the digest of the whole run."""
    yield make_template(tmp_path_factory.mktemp("template"))
    end_server()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what costs most time here: the power stays on."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", some(FAULTS, of=SAMPLE), ids=lambda fault: fault.name)
def test_a_fault(
    fault: Fault, template: tuple[Path, str], tmp_path: Path, record_property: Any
) -> None:
    threads, found = torch.get_num_threads(), Verdict("hung")  # unless it comes to an end
    try:
        found = tried(fault, template[0], tmp_path / "tried", template[1])
    finally:
        torch.set_num_threads(threads)
        record_property("fault", found.kind)
        shutil.rmtree(tmp_path / "tried", ignore_errors=True)
    assert found.kind in (*FINE, "unreached"), found.said


def test_there_are_as_many_as_the_pages_say() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names))
    assert len(names) * (SAMPLE - 1) // SAMPLE >= 1500
    assert len(names) // SAMPLE >= 200
