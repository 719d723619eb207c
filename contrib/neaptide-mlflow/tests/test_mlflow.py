"""What MLflow has of a run, read by its client, and the cost of a failing store: the points."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from mlflow import MlflowClient
from neaptide_mlflow.config import MlflowConfig

from neaptide import ConfigError
from neaptide_toolkit.loggers.testing import StoppedError, curves_of, short_run
from neaptide_toolkit.testing import check_plugin

if TYPE_CHECKING:
    from pathlib import Path

    from mlflow.entities import Metric


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with MLflow's tables: making them takes seconds."""
    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    client = MlflowClient(f"sqlite:///{path}")
    client.create_experiment("neaptide", artifact_location=str(path.parent))
    return path


@pytest.fixture
def uri(template: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(template, tmp_path)}"


def runs(uri: str) -> list[Any]:
    """Return the runs of the experiment, the oldest first."""
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("neaptide")
    return client.search_runs([experiment.experiment_id], order_by=["start_time"])


def curves(uri: str, run: Any) -> dict[str, list[tuple[int, float]]]:
    """Return every metric of a run with its whole history."""
    client = MlflowClient(uri)
    found = {}
    for name in run.data.metrics:
        history: list[Metric] = client.get_metric_history(run.info.run_id, name)
        found[name] = [(point.step, point.value) for point in history]
    return found


def plugin(uri: str, **settings: Any) -> dict[str, Any]:
    return {"mlflow": {"tracking_uri": uri, **settings}}


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    lines = (directory / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == name]


@pytest.mark.parametrize("flush_seconds", [0.0, 3600.0])
def test_everything_recorded_is_in_the_store(
    tmp_path: Path, uri: str, flush_seconds: float
) -> None:
    settings = {"flush_seconds": flush_seconds, "tags": {"team": "a"}}
    summary = short_run(tmp_path / "run", plugin(uri, **settings))
    (run,) = runs(uri)
    shown, expected = curves(uri, run), curves_of(tmp_path / "run")
    assert {"train/loss", "loss/predict", "eval/loss", "train/learning_rate"} < set(expected)
    assert expected == {name: shown[name] for name in expected}
    assert list(range(1, 13)) == [step for step, _ in shown["memory/host_bytes"]]
    assert summary["jumps"] == len(shown["jump/accepted"])
    assert ("run", "FINISHED") == (run.info.run_name, run.info.status)
    assert ("a", "full") == (run.data.tags["team"], run.data.tags["phase"])
    params = run.data.params
    assert ("12", "4", uri) == (
        params["train.steps"],
        params["plugins.predictor-drift.min_window"],
        params["plugins.mlflow.tracking_uri"],
    )


def test_a_resumed_run_goes_on_without_repeated_points(tmp_path: Path, uri: str) -> None:
    whole = short_run(tmp_path / "whole", {})
    with pytest.raises(StoppedError):
        short_run(tmp_path / "run", plugin(uri), stop_after=7)
    assert ["FAILED"] == [run.info.status for run in runs(uri)]
    changed = {"flush_seconds": 1.0}
    again = short_run(tmp_path / "run", plugin(uri, **changed), resume="auto", allow_changes=True)
    assert whole["final_loss"] == again["final_loss"]
    (run,) = runs(uri)
    assert "FINISHED" == run.info.status
    expected, shown = curves_of(tmp_path / "whole"), curves(uri, run)
    assert expected == {name: shown[name] for name in expected}
    (kept,) = events(tmp_path / "run", "mlflow.params_kept")
    assert "plugins.mlflow.flush_seconds" == kept["changed"]
    assert "5.0" == run.data.params["plugins.mlflow.flush_seconds"]


def test_a_new_run_in_the_directory_is_a_new_run_of_mlflow(tmp_path: Path, uri: str) -> None:
    for _ in range(2):
        shutil.rmtree(tmp_path / "run/checkpoints", ignore_errors=True)
        short_run(tmp_path / "run", plugin(uri, name="mine"), steps=2)
    assert ["mine", "mine"] == [run.info.run_name for run in runs(uri)]


def test_a_store_that_fails_costs_the_points_alone(tmp_path: Path, uri: str) -> None:
    """The run of MLflow is deleted while it trains: the store refuses its points from then on."""
    expected = short_run(tmp_path / "whole", {})

    class Deletes:
        def __call__(self, result: Any, state: Any) -> None:
            if state.step == 5:
                MlflowClient(uri).delete_run(runs(uri)[0].info.run_id)

    summary = short_run(tmp_path / "run", plugin(uri, flush_seconds=0.0), observe=Deletes())
    assert expected["final_loss"] == summary["final_loss"]
    (event,) = events(tmp_path / "run", "plugin.quarantined")
    assert ("mlflow", "warning") == (event["plugin"], event["level"])


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:9", "sqlite:////dev/null/mlflow.db", "nonsense://there"]
)
def test_a_store_that_is_not_there_ends_the_run_before_it_begins(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ConfigError) as caught:
        short_run(None, plugin(uri))
    assert str(caught.value).startswith(f"MLflow cannot use {uri}: ")
    assert str(caught.value).endswith(" @ plugins.mlflow.tracking_uri")
    assert "\n" not in str(caught.value)


def test_a_deleted_experiment_is_refused(uri: str) -> None:
    client = MlflowClient(uri)
    client.delete_experiment(client.get_experiment_by_name("neaptide").experiment_id)
    with pytest.raises(ConfigError, match="experiment neaptide is deleted; restore it, or set"):
        short_run(None, plugin(uri))


def test_it_keeps_the_contract(uri: str) -> None:
    check_plugin("mlflow", {"tracking_uri": uri, "flush_seconds": 0.0})


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neaptide_toolkit.loggers.logger.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        short_run(None, {"mlflow": {}})
    said = 'mlflow is not installed: pip install "neaptide-mlflow" @ plugins.mlflow'
    assert said == str(caught.value)


def test_settings_are_checked() -> None:
    for wrong in ({"every": 0}, {"flush_seconds": -1.0}, {"experiment": ""}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            attrs.evolve(MlflowConfig(), **wrong)
