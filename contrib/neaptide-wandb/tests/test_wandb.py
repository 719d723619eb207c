"""What W&B has of a run, read from its own files, and the cost of a failing W&B: the points."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from neaptide_wandb import SPEC
from neaptide_wandb.config import WandbConfig

from neaptide import ConfigError
from neaptide.config import loads
from neaptide_toolkit.loggers.testing import StoppedError, curves_of, short_run
from neaptide_toolkit.testing import check_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OFFLINE = {"wandb": {"mode": "offline"}}
STEP = "train/global_step"


def records(directory: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind in the files of all runs."""
    files = sorted((directory / "wandb").glob("offline-run-*/*.wandb"))
    return [line[kind] for file in files for line in lines_of(file) if line["type"] == kind]


@cache
def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return what W&B's own reader finds in a file of a finished run."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    read = subprocess.run(command, env=without_wandb(), check=True, capture_output=True, text=True)
    return [json.loads(line) for line in read.stdout.splitlines()]


def curves(directory: Path) -> dict[str, list[tuple[int, Any]]]:
    """Return the points of the history by name."""
    found = defaultdict(list)
    for record in records(directory, "history"):
        item = record["item"]
        for name, value in item.items():
            if name != STEP and not name.startswith("_"):
                found[name].append((item[STEP], value))
    return found


def test_everything_recorded_is_in_the_history(tmp_path: Path) -> None:
    summary = short_run(tmp_path / "run", OFFLINE)
    folder = tmp_path / "run/plugins/wandb"
    shown, expected = curves(folder), curves_of(tmp_path / "run")
    assert {"train/loss", "loss/predict", "eval/loss", "train/learning_rate"} < set(expected)
    assert expected == {name: shown[name] for name in expected}
    assert list(range(1, 13)) == [step for step, _ in shown["memory/host_bytes"]]
    assert summary["jumps"] == len(shown["jump/accepted"])
    assert [(1, "warmup"), (3, "full")] == shown["phase"][:2]
    (run,) = records(folder, "run")
    assert ("neaptide", "run") == (run["project"], run["display_name"])
    written = loads((tmp_path / "run/config.toml").read_text(encoding="utf-8"))
    config = run["config"]["update"]
    assert written["phases"] == config["phases"]
    assert (
        written["plugins"]["predictor-drift"].items()
        <= config["plugins"]["predictor-drift"].items()
    )
    (ended,) = records(folder, "exit")
    assert 0 == ended.get("exit_code", 0)


def test_a_resumed_run_goes_on_without_repeated_points(tmp_path: Path) -> None:
    whole = short_run(tmp_path / "whole", {})
    with pytest.raises(StoppedError):
        short_run(tmp_path / "run", OFFLINE, stop_after=7)
    again = short_run(tmp_path / "run", OFFLINE, resume="auto")
    assert whole["final_loss"] == again["final_loss"]
    folder = tmp_path / "run/plugins/wandb"
    assert 1 == len({run["run_id"] for run in records(folder, "run")})
    assert 2 == len(records(folder, "run"))
    expected = curves_of(tmp_path / "whole")
    shown = curves(folder)
    assert expected == {name: shown[name] for name in expected}
    rows = [record["step"].get("num", 0) for record in records(folder, "history")]
    assert list(range(len(rows))) == rows
    assert 1 == records(folder, "exit")[0]["exit_code"]


def test_a_new_run_in_the_directory_is_a_new_run_of_wandb(tmp_path: Path) -> None:
    for _ in range(2):
        shutil.rmtree(tmp_path / "run/checkpoints", ignore_errors=True)
        short_run(tmp_path / "run", OFFLINE, steps=2)
    ids = {
        run["run_id"]
        for folder in (tmp_path / "run/plugins/wandb", tmp_path / "run/earlier-1/plugins/wandb")
        for run in records(folder, "run")
    }
    assert 2 == len(ids)


def test_every_so_many_updates_a_point(tmp_path: Path) -> None:
    settings = {"mode": "offline", "every": 5, "dir": str(tmp_path / "logs"), "id": "chosen"}
    short_run(None, {"wandb": settings})
    shown = curves(tmp_path / "logs")
    assert [5, 10] == [step for step, _ in shown["train/loss"]]
    assert shown["loss/predict"]
    assert "chosen" == records(tmp_path / "logs", "run")[0]["run_id"]


def test_disabled_writes_nothing(tmp_path: Path) -> None:
    short_run(tmp_path / "run", {"wandb": {"mode": "disabled"}}, steps=3)
    assert not list((tmp_path / "run/plugins/wandb").glob("wandb*"))


# --- the network ----------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server that refuses every key, and the list of what it was asked."""
    asked: list[str] = []

    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(401)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - the name that http.server asks for

        def log_message(self, *arguments: Any) -> None:
            del arguments

    with HTTPServer(("127.0.0.1", 0), Refuses) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}", asked
        serving.shutdown()
        thread.join()


CONFIG = """
[model]
name = "builtin:mlp"
[data]
name = "builtin:digits"
[train]
steps = 3
[plugins.wandb]
"""


def without_wandb() -> dict[str, str]:
    """Return the environment without W&B's variables: one names a process of this process."""
    return {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}


def ran(folder: Path, address: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line against a server, as a user without an account."""
    (folder / "run.toml").write_text(CONFIG, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "neaptide", "run", "run.toml", "--json", "--set", "run.dir=out"],
        cwd=folder,
        env={**without_wandb(), "HOME": str(folder), "WANDB_BASE_URL": address, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "W&B has no API key; run `wandb login`, set WANDB_API_KEY, or set"),
        ({"WANDB_API_KEY": 40 * "0"}, "W&B: "),
    ],
    ids=["no key", "wrong key"],
)
def test_without_an_account_the_run_ends_before_it_begins(
    tmp_path: Path, server: tuple[str, list[str]], variables: dict[str, str], said: str
) -> None:
    done = ran(tmp_path, server[0], **variables)
    assert 2 == done.returncode, done.stderr
    message = json.loads(done.stdout)["error"]
    assert message.startswith(said)
    assert message.endswith('set plugins.wandb.mode = "offline" @ plugins.wandb.mode')
    assert "\n" not in message
    assert not (tmp_path / "out/steps.csv").exists()
    assert bool(variables) == bool(server[1])


def test_offline_nothing_is_asked_of_the_network_and_stdout_is_the_runs(
    tmp_path: Path, server: tuple[str, list[str]]
) -> None:
    variables = {"WANDB_MODE": "offline", "WANDB_API_KEY": 40 * "0", "HTTPS_PROXY": server[0]}
    done = ran(tmp_path, server[0], **variables)
    assert (0, 3) == (done.returncode, json.loads(done.stdout)["steps"]), done.stderr
    assert [] == server[1]
    assert list((tmp_path / "out/plugins/wandb/wandb").glob("offline-run-*"))


KILLS = """
import sys
from pathlib import Path
import psutil
from neaptide import HybridTrainer
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.tiny import tiny_loss

def observe(result, state):
    if state.step == 5:
        children = psutil.Process().children(recursive=True)
        assert children
        for child in children:
            child.kill()

task = tiny_task(0)
config = {
    "run": {"dir": sys.argv[1]},
    "train": {"steps": 12},
    "plugins": {"wandb": {"mode": "offline"}},
}
with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as trainer:
    trainer.fit(task.batches[:12], observe=observe)
"""


def test_a_process_of_wandb_that_dies_costs_the_points_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLS, str(tmp_path / "run")]
    done = subprocess.run(
        command, env=without_wandb(), capture_output=True, text=True, check=False, timeout=120
    )
    assert (tmp_path / "run/summary.json").exists(), done.stderr
    assert 1 == done.stderr.count("plugin.quarantined")


# --- the contract ---------------------------------------------------------------------------------


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    check_plugin("wandb", {"mode": "offline", "dir": str(tmp_path)})


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neaptide_toolkit.loggers.logger.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        short_run(None, OFFLINE)
    said = 'wandb is not installed: pip install "neaptide-wandb" @ plugins.wandb'
    assert said == str(caught.value)


def test_settings_are_checked() -> None:
    assert WandbConfig is SPEC.config
    for wrong in ({"every": 0}, {"project": ""}, {"name": ""}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            attrs.evolve(WandbConfig(), **wrong)
    with pytest.raises(ConfigError, match=r"@ plugins\.wandb\.mode"):
        short_run(None, {"wandb": {"mode": "of"}})
