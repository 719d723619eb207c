"""The copy of the best checkpoint: its bytes, and what a resume, a full disk and a bad file do."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import warm
from support import environment, plugin_with, stranger, tiny_trainer

from neaptide import ConfigError, hookimpl
from neaptide.api.steps import MEASURED
from neaptide.checkpoint import read_manifest, verify
from neaptide_plugins.best_checkpoint import SPEC
from neaptide_toolkit.testing import check_plugin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EVERY, STEPS = 2, 12


@attrs.frozen
class Script:
    """A plugin that measures given values: one for each update at which an evaluation is."""

    values: dict[int, float]
    before: Callable[[int], None] = attrs.field(default=lambda _step: None)

    def manifest(self) -> Any:
        script, at = self, {"step": 0}

        def on_run_start(self: Any, run: Any) -> None:
            self.run = run

        def after_step(self: Any, step: int) -> None:
            del self
            at["step"] = step

        def around_evaluate(self: Any) -> Any:
            def scripted(following: Any, **arguments: Any) -> float:
                loss: float = following(**arguments)
                script.before(at["step"])
                self.run.stash.set(MEASURED, {"scripted": script.values[at["step"]]})
                return loss

            return scripted

        hooks = (on_run_start, after_step, around_evaluate)
        cls = plugin_with(
            **{hook.__name__: hookimpl(hook) for hook in hooks},
            state_dict=lambda _self: dict(at),
            load_state_dict=lambda _self, state: at.update(state),
        )
        return stranger(cls, "script")


VALUES = {2: 5.0, 4: 3.0, 6: math.nan, 8: 4.0, 10: 3.0, 12: 7.0}


def config_of(folder: Path, mode: str = "min", **run: Any) -> dict[str, Any]:
    return {
        "run": {"dir": str(folder), "checkpoint_every": EVERY, "keep": 0, **run},
        "train": {"steps": STEPS},
        "eval": {"every": EVERY},
        "plugins": {"best-checkpoint": {"metric": "scripted", "mode": mode}},
    }


def run(
    config: dict[str, Any], values: dict[int, float] | None = None, resume: Any = None, **given: Any
) -> tuple[dict[str, Any], str | None]:
    trainer, batches = tiny_trainer(config, [Script(values or VALUES, **given).manifest()])
    with trainer:
        trainer.fit(batches[:STEPS], validation=batches[-2:], resume=resume)
        return trainer.hooks.plugins["best-checkpoint"].state_dict(), trainer.report(
            "best-checkpoint"
        )


def events_of(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [one for one in map(json.loads, lines) if one["event"] == name]


def content(checkpoint: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in checkpoint.iterdir()}


def test_the_contract_is_kept() -> None:
    check_plugin(SPEC)


@pytest.mark.parametrize(("mode", "step", "since"), [("min", 4, 4), ("max", 12, 0)])
def test_the_copy_is_the_best_checkpoint_byte_for_byte(
    mode: str, step: int, since: int, tmp_path: Path
) -> None:
    state, report = run(config_of(tmp_path, mode))
    root = tmp_path / "checkpoints"
    assert {"value": VALUES[step], "step": step, "since": since, "evaluated": 12} == state
    assert content(root / f"step-{step:08d}").keys() == content(root / "best").keys()
    for name, file in content(root / f"step-{step:08d}").items():
        assert name == "manifest.json" or file == content(root / "best")[name]
    assert [] == verify(root / "best")
    assert step == read_manifest(root / "best").step
    kept = [2, 4] if mode == "min" else [2, 12]
    assert kept == [one["step"] for one in events_of(tmp_path, "best.kept")]
    assert report is not None
    assert f"at update {step} ({since} evaluations since)\nkept in {root / 'best'}" in report


def test_it_outlives_the_checkpoints_of_the_run(tmp_path: Path) -> None:
    run(config_of(tmp_path, keep=1, frozen="reference"))
    root = tmp_path / "checkpoints"
    assert ["step-00000012"] == [one.name for one in root.glob("step-*")]
    trainer, _ = tiny_trainer(config_of(tmp_path), [Script(VALUES).manifest()])
    with trainer:
        trainer.load(root / "best")
        assert 4 == trainer.state.step


@pytest.mark.parametrize("stop", [5, 8])
def test_a_resumed_run_ends_with_the_same_best(stop: int, tmp_path: Path) -> None:
    whole = run(config_of(tmp_path / "whole"))[0]

    class StoppedError(Exception):
        """Stands for a killed process."""

    def stopping(step: int) -> None:
        if step > stop:
            raise StoppedError

    parts = tmp_path / "parts"
    with pytest.raises(StoppedError):
        run(config_of(parts), before=stopping)
    assert whole == run(config_of(parts), resume="auto")[0]
    one, two = (folder / "checkpoints/best" for folder in (tmp_path / "whole", parts))
    assert (
        read_manifest(one).files["weights.safetensors"]
        == (read_manifest(two).files["weights.safetensors"])
    )


def test_a_run_goes_on_from_the_copy(tmp_path: Path) -> None:
    whole = run(config_of(tmp_path, keep=1))[0]
    assert whole == run(config_of(tmp_path, keep=1), resume=tmp_path / "checkpoints/best")[0]
    assert [] == events_of(tmp_path, "best.not_kept")


def test_a_copy_of_another_update_is_told(tmp_path: Path) -> None:
    run(config_of(tmp_path))
    checkpoints = tmp_path / "checkpoints"
    other = {**VALUES, 4: 9.0, 8: 1.0}
    _, report = run(config_of(tmp_path), other, checkpoints / "step-00000004")
    assert report is not None
    assert "at update 8 (2 evaluations since)\nkept in" in report
    later = {**VALUES, 8: 6.0, 10: 6.0}
    _, report = run(config_of(tmp_path), later, checkpoints / "step-00000006")
    assert report is not None
    assert "at update 2 (5 evaluations since)\nnot kept: " in report
    assert report.endswith("best is of update 8")


def test_a_damaged_checkpoint_is_not_kept_and_training_goes_on(tmp_path: Path) -> None:
    def damaging(step: int) -> None:
        if step == 4:
            file = tmp_path / "checkpoints/step-00000004/weights.safetensors"
            file.write_bytes(file.read_bytes()[:-1] + b"?")

    state, report = run(config_of(tmp_path), before=damaging)
    (event,) = events_of(tmp_path, "best.not_kept")
    assert "is not as it was saved" in event["error"]
    assert (4, 3.0) == (state["step"], state["value"])
    assert 2 == read_manifest(tmp_path / "checkpoints/best").step
    assert [] == verify(tmp_path / "checkpoints/best")
    assert report is not None
    assert report.endswith("best is of update 2")


def test_without_a_directory_it_only_judges() -> None:
    config = config_of(None)  # type: ignore[arg-type]
    config["run"] = {}
    state, report = run(config)
    assert 4 == state["step"]
    assert report == "best scripted 3 at update 4 (4 evaluations since)"


@pytest.mark.parametrize("saves", [0, 3, 4])
def test_evaluations_without_a_checkpoint_are_refused(saves: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set run\.checkpoint_every = 2") as caught:
        run(config_of(tmp_path, checkpoint_every=saves))
    assert 1 == len(str(caught.value).splitlines())


def test_a_metric_that_nobody_measures_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config["plugins"]["best-checkpoint"]["metric"] = "skripted"
    with pytest.raises(ConfigError, match="did you mean 'scripted'") as caught:
        run(config)
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize(
    "wrong", [{"value": "1"}, {"step": -1}, {"since": 1.5}, {"evaluated": "now"}]
)
def test_a_forged_state_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    trainer, _ = tiny_trainer(config_of(tmp_path), [Script(VALUES).manifest()])
    with trainer, pytest.raises(ValueError, match="must be a"):
        trainer.hooks.plugins["best-checkpoint"].load_state_dict(
            {"value": 1.0, "step": 2, "since": 0, "evaluated": 2, **wrong}
        )


def test_the_loss_is_the_default(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config["plugins"]["best-checkpoint"] = {}
    state, _ = run(config)
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = {one["step"]: one["val_loss"] for one in map(json.loads, lines) if "val_loss" in one}
    assert min(losses.values()) == state["value"] == losses[state["step"]]


PATIENT = {2: 5.0, 4: 3.0, 6: 4.0, 8: 3.5, 10: 1.0, 12: 1.0}


def test_patience_ends_the_run_with_a_summary(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config["plugins"]["best-checkpoint"]["patience"] = 2
    state, report = run(config, PATIENT)
    assert {"value": 3.0, "step": 4, "since": 2, "evaluated": 8} == state
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert 8 == summary["steps"]
    (event,) = events_of(tmp_path, "run.ends_early")
    assert (8, "no better scripted in 2 evaluations") == (event["step"], event["reason"])
    assert report is not None
    assert report.startswith("ended early, after update 8: no better scripted in 2 evaluations\n")
    assert 4 == read_manifest(tmp_path / "checkpoints/best").step


def test_a_run_that_ended_early_ends_again_when_it_is_resumed(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config["plugins"]["best-checkpoint"]["patience"] = 2
    first = run(config, PATIENT)
    assert first == run(config, PATIENT, resume="auto")


@pytest.mark.parametrize("stop", [2, 4, 6])
def test_patience_goes_on_counting_after_a_resume(stop: int, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config["plugins"]["best-checkpoint"]["patience"] = 2

    class StoppedError(Exception):
        """Stands for a killed process."""

    def stopping(step: int) -> None:
        if step > stop:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(config, PATIENT, before=stopping)
    assert {"value": 3.0, "step": 4, "since": 2, "evaluated": 8} == (
        run(config, PATIENT, resume="auto")[0]
    )


def test_a_run_that_reaches_its_end_has_not_ended_early(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config["plugins"]["best-checkpoint"]["patience"] = 4
    state, report = run(config)
    assert (12, 4) == (state["evaluated"], state["since"])
    assert report is not None
    assert "ended early" not in report


STILL = """
[run]
checkpoint_every = 5
[model]
name = "builtin:mlp"
options = { width = 16, layers = 1 }
[data]
name = "builtin:digits"
[optimizer]
lr = 1e-30
[train]
steps = 100
[eval]
every = 5
[plugins.best-checkpoint]
patience = 3
"""


def test_the_command_line_ends_with_zero_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "still.toml").write_text(STILL, encoding="utf-8")
    words = ["-m", "neaptide", "run", "still.toml", "--quiet"]
    ended = warm.run(words, cwd=tmp_path, env=environment())
    assert 0 == ended.returncode, ended.stderr
    assert "updates            20\n" in ended.stdout
    assert "ended early, after update 20: no better val_loss in 3 evaluations" in ended.stdout
