"""machine.json: the facts of every distribution that ships some, found by entry points."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from distributions import install
from support import tiny_trainer

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def recorded(tmp_path: Path) -> dict[str, Any]:
    """Return machine.json of a run of one step."""
    trainer, batches = tiny_trainer({"run": {"dir": str(tmp_path / "run")}})
    with trainer:
        trainer.step(batches[0])
    facts: dict[str, Any] = json.loads((tmp_path / "run" / "machine.json").read_text())
    return facts


def test_a_strangers_facts_stand_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path / "site",
        "neaptide-commit",
        {"neaptide.facts": {"commit": "neaptide_commit:facts"}},
        {"neaptide_commit.py": "def facts():\n    return {'commit': 'abc123'}\n"},
    )
    ours = recorded(tmp_path / "before")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert {*ours, "commit"} == recorded(tmp_path / "after").keys()
    assert {"python", "cpu", "architecture"} <= ours.keys()


def test_facts_that_cannot_be_imported_cost_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {"neaptide.facts": {"broken": "neaptide_broken_facts:facts"}}
    install(
        tmp_path / "site",
        "neaptide-broken",
        entries,
        {"neaptide_broken_facts.py": "import nowhere"},
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with caplog.at_level(logging.WARNING, logger="neaptide"):
        assert "cpu" in recorded(tmp_path)
    (line,) = [record.getMessage() for record in caplog.records if "broken" in record.getMessage()]
    assert "fact 'broken' of neaptide-broken 1.0: importing" in line
