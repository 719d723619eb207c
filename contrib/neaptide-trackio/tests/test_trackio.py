"""What Trackio has of a run, read from its database; what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from neaptide_trackio.config import TrackioConfig
from trackio.sqlite_storage import SQLiteStorage

from neaptide import ConfigError
from neaptide_toolkit.loggers.testing import StoppedError, curves_of, short_run
from neaptide_toolkit.testing import check_plugin

if TYPE_CHECKING:
    from pathlib import Path


def plugin(project: str, **settings: Any) -> dict[str, Any]:
    return {"trackio": {"project": project, "system_metrics": False, **settings}}


def runs(project: str) -> list[str]:
    return [str(run["name"]) for run in SQLiteStorage.get_run_records(project)]


def curves(project: str, run: str) -> dict[str, list[tuple[int, Any]]]:
    """Return the points of a run by name."""
    found = defaultdict(list)
    for row in SQLiteStorage.get_logs(project, run):
        for name, value in row.items():
            if name not in ("step", "timestamp"):
                found[name].append((row["step"], value))
    return found


def test_everything_recorded_is_in_the_database(tmp_path: Path) -> None:
    summary = short_run(tmp_path / "mine", plugin("everything", group="g"))
    (run,) = runs("everything")
    assert run.startswith("mine-")
    shown, expected = curves("everything", run), curves_of(tmp_path / "mine")
    assert {"train/loss", "loss/predict", "eval/loss", "train/learning_rate"} < set(expected)
    assert expected == {name: shown[name] for name in expected}
    assert list(range(1, 13)) == [step for step, _ in shown["memory/host_bytes"]]
    assert summary["jumps"] == len(shown["jump/accepted"])
    assert [(1, "warmup"), (3, "full")] == shown["phase"][:2]
    config = SQLiteStorage.get_run_config("everything", run)
    assert config is not None
    assert (12, 4, "g") == (
        config["train"]["steps"],
        config["plugins"]["predictor-drift"]["min_window"],
        config["_Group"],
    )


def test_a_resumed_run_goes_on_without_repeated_points(tmp_path: Path) -> None:
    whole = short_run(tmp_path / "whole", {})
    with pytest.raises(StoppedError):
        short_run(tmp_path / "run", plugin("resumed"), stop_after=7)
    again = short_run(tmp_path / "run", plugin("resumed"), resume="auto")
    assert whole["final_loss"] == again["final_loss"]
    (run,) = runs("resumed")
    expected, shown = curves_of(tmp_path / "whole"), curves("resumed", run)
    assert expected == {name: shown[name] for name in expected}


def test_new_runs_are_new_runs_of_trackio(tmp_path: Path) -> None:
    for _ in range(2):
        shutil.rmtree(tmp_path / "run/checkpoints", ignore_errors=True)
        short_run(tmp_path / "run", plugin("new"), steps=2)
    short_run(None, plugin("new", name="mine", every=2), steps=2)
    found = runs("new")
    assert 3 == len(set(found))
    (mine,) = (name for name in found if name.startswith("mine-"))
    assert [2] == [step for step, _ in curves("new", mine)["train/loss"]]


def test_two_run_directories_with_one_name_do_not_share_a_run(tmp_path: Path) -> None:
    named = plugin("shared", name="mine")
    with pytest.raises(StoppedError):
        short_run(tmp_path / "first", named, steps=8, stop_after=6)
    short_run(tmp_path / "second", named, steps=4)
    short_run(tmp_path / "first", named, steps=8, resume="auto")
    lasts = sorted(curves("shared", name)["train/loss"][-1][0] for name in set(runs("shared")))
    assert [4, 8] == lasts


CONFIG = """
[model]
name = "builtin:mlp"
[data]
name = "builtin:digits"
[train]
steps = 3
[plugins.trackio]
"""


def ran(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "run.toml").write_text(CONFIG, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "neaptide", "run", "run.toml", "--json", "--set", "run.dir=out"],
        cwd=folder,
        env={**os.environ, "TRACKIO_DIR": str(folder / "store")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_stdout_is_the_runs(tmp_path: Path) -> None:
    done = ran(tmp_path)
    assert (0, 3) == (done.returncode, json.loads(done.stdout)["steps"]), done.stderr
    assert "Trackio project initialized: neaptide" in done.stderr


def test_a_store_nobody_can_write_to_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way", encoding="utf-8")
    done = ran(tmp_path)
    message = json.loads(done.stdout)["error"]
    assert (2, True) == (done.returncode, message.startswith("Trackio cannot write in "))
    assert message.endswith("set TRACKIO_DIR to another directory @ plugins.trackio")


def test_it_keeps_the_contract() -> None:
    check_plugin("trackio", {"system_metrics": False})


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neaptide_toolkit.loggers.logger.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        short_run(None, plugin("missing"))
    said = 'trackio is not installed: pip install "neaptide-trackio" @ plugins.trackio'
    assert said == str(caught.value)


def test_settings_are_checked() -> None:
    for wrong in ({"every": 0}, {"project": ""}, {"name": ""}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            attrs.evolve(TrackioConfig(), **wrong)
