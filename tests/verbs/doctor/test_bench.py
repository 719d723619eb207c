"""`neaptide doctor --bench` measures this machine, and `neaptide plan` uses what it measured."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import pytest
import torch

import neaptide
from neaptide.cli import main
from neaptide.errors import ConfigError
from neaptide_toolkit.machine import measuring, profiles
from neaptide_toolkit.testing import kinds

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {
    "model": {"name": f"{kinds.__name__}:encoder"},
    "data": {"name": f"{kinds.__name__}:sequences"},
    "train": {"device": "cpu"},
}


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Measure small sizes; return the file of the profile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "ON_CPU", measuring.TINY)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    assert main(["doctor", "--bench", "--dir", str(tmp_path / "runs")]) == 0
    return tmp_path / "cache" / "neaptide" / "machine.json"


def test_the_profile_says_when_and_with_what_it_was_measured(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = profiles.load(stored)
    age = datetime.now(UTC).date() - date.fromisoformat(found.measured["date"])
    assert abs(age.days) <= 1
    assert found.measured["torch"] == torch.__version__
    assert found.measured.keys() == {"date", "torch", "neaptide"}
    assert all(source.startswith("measured: ") for source in found.sources.values())
    assert main(["doctor", "--bench", "--dir", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    assert f"stored in {stored}; neaptide plan uses it\n" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]  # the file of the disk is gone


def test_a_plan_of_this_machine_uses_it(stored: Path) -> None:
    assert neaptide.plan(None, CONFIG, "cpu").seconds_per_step is None
    found = neaptide.plan(None, CONFIG)
    assert found.seconds_per_step > 0
    document = json.loads(stored.read_text())
    document["rates"]["flops_single"] /= 1000
    stored.write_text(json.dumps(document))
    assert neaptide.plan(None, CONFIG).seconds_per_step > 10 * found.seconds_per_step


def test_the_profile_of_another_machine_is_not_used(stored: Path) -> None:
    document = json.loads(stored.read_text())
    stored.write_text(json.dumps({**document, "name": "another"}))
    assert neaptide.plan(None, CONFIG).seconds_per_step is None
    assert neaptide.plan(None, CONFIG, str(stored)).seconds_per_step > 0


def test_a_damaged_profile_is_refused(stored: Path) -> None:
    stored.write_text("{")
    with pytest.raises(ConfigError, match=r"machine\.json: not JSON"):
        neaptide.plan(None, CONFIG)


def test_a_folder_without_direct_io_is_measured_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = measuring.os.open

    def refusing(path: str, flags: int, *more: int) -> int:
        if flags & measuring.os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return given(path, flags, *more)

    monkeypatch.setattr(measuring.os, "open", refusing)
    found = measuring.disk(measuring.TINY, tmp_path)
    assert found["disk_read"][0] > 0
    assert "no direct I/O" in found["disk_write"][1]
    assert [*tmp_path.iterdir()] == []


def test_what_cannot_be_stored_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "ON_CPU", measuring.TINY)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    assert main(["doctor", "--bench", "--dir", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: the rates cannot be measured or stored: ")
    assert error.count("\n") == 1
