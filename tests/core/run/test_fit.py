"""A whole run over data: how it ends, when it saves and evaluates, and what it sums up."""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from support import CYCLE, digest_after, plugin_with, stranger, tiny_trainer

from neaptide import Data, DataError, HybridTrainer, Interrupted, Loss, hookimpl
from neaptide.checkpoint import checkpoints
from neaptide.config.schema import RunSection
from neaptide_toolkit.saved_runs.clock import SaveClock
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def config(directory: Path | None = None, steps: int = 6, **more: Any) -> dict[str, Any]:
    """Return a short run."""
    table: dict[str, Any] = {"train": {"steps": steps}, **more}
    if directory is not None:
        table["run"] = {"dir": str(directory), **more.get("run", {})}
    return table


NOTHING = "the training data gave no batch; check [data] or the loader (is it used up?)"


@pytest.mark.parametrize("empty", [[], (), iter([])])
def test_empty_data_is_an_error(empty: Any) -> None:
    trainer, _ = tiny_trainer(config())
    with trainer, pytest.raises(DataError) as caught:
        trainer.fit(empty)
    assert NOTHING == str(caught.value)


def test_a_generator_that_ends_is_an_error() -> None:
    trainer, batches = tiny_trainer(config())
    with trainer, pytest.raises(DataError) as caught:
        trainer.fit(batch for batch in batches[:4])
    assert str(caught.value).startswith("the training data ended after 4 batches and gives none ")
    assert str(caught.value).endswith("train.steps; not saved: no run.dir")
    assert 4 == trainer.state.step


def test_data_shorter_than_the_run_is_iterated_again() -> None:
    seen: list[int] = []

    class Source:
        def __iter__(self) -> Iterator[Any]:
            for index in range(4):
                seen.append(index)
                yield batches[index]

    trainer, batches = tiny_trainer(config(steps=10))
    with trainer:
        assert 10 == trainer.fit(Source())["steps"]
    assert [0, 1, 2, 3, 0, 1, 2, 3, 0, 1] == seen


def test_a_fit_calls_the_methods_of_a_subclass(tmp_path: Path) -> None:
    called: list[str] = []

    class Counting(HybridTrainer):
        def step(self, batch: Any, **given: Any) -> Any:
            called.append("step")
            return super().step(batch, **given)

        def evaluate(self, batches: Any, **given: Any) -> float:
            called.append("evaluate")
            return super().evaluate(batches, **given)

        def save(self, directory: Any) -> Path:
            called.append("save")
            return super().save(directory)

        def load(self, directory: Any, **given: Any) -> None:
            called.append("load")
            super().load(directory, **given)

        def close(self) -> None:
            called.append("close")
            super().close()

    for steps, expected in ((2, [*2 * ["step"], "save"]), (3, ["load", "step", "save"])):
        task = tiny_task()
        called.clear()
        with Counting(
            task.model, task.optimizer, loss_fn=tiny_loss, config=config(tmp_path, steps)
        ) as trainer:
            trainer.fit(task.batches, validation=task.batches, resume="auto", allow_changes=True)
        assert [*expected, "evaluate", "close"] == called


def test_fit_trains_as_ones_own_loop_does() -> None:
    trainer, batches = tiny_trainer(config(phases=CYCLE, steps=12), ["ema"])
    with trainer:
        trainer.fit(batches)
        weights = {name: value.detach() for name, value in trainer.model.named_parameters()}
    own, batches = tiny_trainer(config(phases=CYCLE, steps=12), ["ema"])
    with own:
        for batch in batches[:12]:
            own.step(batch)
        assert all(weights[name].equal(value) for name, value in own.model.named_parameters())


def test_data_brings_its_own_validation() -> None:
    trainer, batches = tiny_trainer(config())
    with trainer:
        summary = trainer.fit(Data(batches, batches[10:12]))
        assert trainer.evaluate(batches[10:12]) == summary["val_loss"]


def test_without_validation_there_is_no_validation_loss(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer(config(tmp_path / "run", eval={"every": 2}))
    with trainer:
        assert trainer.fit(batches)["val_loss"] is None
    assert "val_loss" not in (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8")


def test_evaluation_happens_as_often_as_asked_and_at_the_end(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer(config(tmp_path / "run", steps=7, eval={"every": 3}))
    with trainer:
        trainer.fit(batches, validation=batches[10:12])
    lines = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [3, 6, 7] == [json.loads(line)["step"] for line in lines if "val_loss" in line]


@pytest.mark.parametrize(("keep", "left"), [(0, [2, 4, 6, 7]), (1, [7]), (3, [4, 6, 7])])
def test_checkpoints_come_as_often_as_asked(tmp_path: Path, keep: int, left: list[int]) -> None:
    run = {"dir": str(tmp_path / "run"), "checkpoint_every": 2, "keep": keep}
    trainer, batches = tiny_trainer({"train": {"steps": 7}, "run": run})
    with trainer:
        trainer.fit(batches)
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert [f"step-{step:08d}" for step in left] == names


@pytest.mark.parametrize(
    ("minutes", "takes", "expected"),
    [
        (15.0, 1.0, [15, 31, 47]),  # a minute an update
        (15.0, 120.0, [15, 57]),  # a save takes two minutes: 40 minutes are longer
        (0.0, 1.0, []),
    ],
)
def test_checkpoints_come_by_time_unless_updates_are_written(
    minutes: float, takes: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = SaveClock(RunSection(checkpoint_minutes=minutes))
    saved = []
    for step in range(1, 60):
        now[0] = max(now[0], 60.0 * step)
        if clock.due(step):
            saved.append(step)
            with clock.saving():
                now[0] += takes
    assert expected == saved
    every = SaveClock(RunSection(checkpoint_every=7, checkpoint_minutes=minutes))
    assert [7, 14, 21] == [step for step in range(1, 25) if every.due(step)]


def test_without_a_run_directory_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer, batches = tiny_trainer(config(phases=CYCLE), ["predictor-drift", "ema"])
    with trainer:
        summary = trainer.fit(batches, validation=batches[10:11])
    assert 6 == summary["steps"]
    assert [] == list(tmp_path.iterdir())


def test_the_summary_is_written_and_says_what_happened(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer(config(tmp_path / "run", phases=CYCLE))
    with trainer:
        summary = trainer.fit(batches, validation=batches[10:12])
        last = trainer.state.history.losses[-1]
        assert trainer.digest() == summary["digest"]
    written = json.loads((tmp_path / "run/summary.json").read_text(encoding="utf-8"))
    assert summary == written
    assert (6, 0, 0.0, None, last) == (
        summary["steps"],
        summary["jumps"],
        summary["backward_skipped"],
        summary["speedup"],
        summary["final_loss"],
    )
    assert {"warmup", "full"} == summary["peak_bytes"].keys()
    assert math.isfinite(summary["val_loss"])


def test_the_effective_config_repeats_the_run(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer(config(tmp_path / "run", phases=CYCLE), ["ema"])
    with trainer:
        expected = trainer.fit(batches)["digest"]
    (tmp_path / "run").rename(tmp_path / "first")
    again, batches = tiny_trainer(tmp_path / "first" / "config.toml")
    with again:
        assert expected == again.fit(batches)["digest"]


def test_a_checkpoint_that_cannot_be_written_is_an_event_not_the_end(tmp_path: Path) -> None:
    run = {"dir": str(tmp_path / "run"), "checkpoint_every": 2}
    trainer, batches = tiny_trainer({"train": {"steps": 7}, "run": run})
    checkpoints = tmp_path / "run/checkpoints"

    def observe(result: Any, state: Any) -> None:
        if state.step == 3:
            shutil.rmtree(checkpoints)
            checkpoints.write_text("in the way", encoding="utf-8")
        elif state.step == 5:
            checkpoints.unlink()

    with trainer:
        summary = trainer.fit(batches, observe=observe)
    lines = (tmp_path / "run/events.jsonl").read_text(encoding="utf-8").splitlines()
    failed = [json.loads(line) for line in lines if "checkpoint.failed" in line]
    assert [(4, "error")] == [(event["step"], event["level"]) for event in failed]
    undisturbed, batches = tiny_trainer({"train": {"steps": 7}})
    with undisturbed:
        assert undisturbed.fit(batches)["digest"] == summary["digest"]


def test_the_observer_sees_every_step() -> None:
    seen: list[tuple[int, int]] = []
    trainer, batches = tiny_trainer(config())
    with trainer:
        trainer.fit(batches, observe=lambda result, state: seen.append((result.step, state.step)))
    assert [(step, step) for step in range(1, 7)] == seen


def test_the_observer_is_told_of_evaluations() -> None:
    class Display:
        seen: ClassVar[list[tuple[int, float]]] = []

        def __call__(self, result: Any, state: Any) -> None: ...

        def evaluated(self, step: int, loss: float) -> None:
            self.seen.append((step, loss))

    trainer, batches = tiny_trainer(config(eval={"every": 4}))
    with trainer:
        summary = trainer.fit(batches, validation=batches[10:12], observe=Display())
    assert [4, 6] == [step for step, _ in Display.seen]
    assert summary["val_loss"] == Display.seen[-1][1]


class Signalling:
    """Validation batches during whose `nth` pass a signal arrives."""

    def __init__(self, batches: list[Any], nth: int) -> None:
        self.batches, self.left, self.taken = batches, nth, 0

    def __iter__(self) -> Iterator[Any]:
        self.left -= 1
        for batch in self.batches:
            if self.left == 0:
                signal.raise_signal(signal.SIGTERM)
            self.taken += 1
            yield batch


def evaluations(directory: Path) -> list[tuple[int, float]]:
    """Return the steps and values of the validation losses on record."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = map(json.loads, lines)
    return [(line["step"], line["val_loss"]) for line in records if "val_loss" in line]


@pytest.mark.parametrize(("nth", "stopped_after"), [(1, 3), (2, 6), (3, 7)])
def test_a_signal_during_an_evaluation_saves_and_the_evaluation_is_made_on_resume(
    tmp_path: Path, nth: int, stopped_after: int
) -> None:
    def run(name: str, nth: int = 0, **given: Any) -> dict[str, Any]:
        trainer, batches = tiny_trainer(config(tmp_path / name, steps=7, eval={"every": 3}))
        validation = Signalling(batches[8:12], nth)
        try:
            with trainer:
                return trainer.fit(batches, validation=validation, **given)
        finally:
            assert not nth or 4 * (nth - 1) + 1 == validation.taken  # and no batch more

    expected = run("whole")
    with pytest.raises(Interrupted) as caught:
        run("run", nth)
    assert 143 == caught.value.exit_code
    (saved,) = checkpoints(tmp_path / "run/checkpoints")
    said = f"stopped by signal 15 after update {stopped_after}: saved {saved}; go on with "
    assert f"{said}--resume auto" == str(caught.value)
    events = (tmp_path / "run/events.jsonl").read_text(encoding="utf-8").splitlines()
    assert ("run.stopped", stopped_after, 15) == tuple(
        json.loads(events[-1])[key] for key in ("event", "step", "signal")
    )
    resumed = run("run", resume="auto")
    assert (expected["digest"], expected["val_loss"]) == (resumed["digest"], resumed["val_loss"])
    assert evaluations(tmp_path / "whole") == evaluations(tmp_path / "run")


def test_a_signal_on_a_step_due_for_evaluation_costs_no_row(tmp_path: Path) -> None:
    table = config(tmp_path / "run", steps=7, eval={"every": 3})

    def observe(result: Any, state: Any) -> None:
        if state.step == 3:
            signal.raise_signal(signal.SIGINT)

    trainer, batches = tiny_trainer(table)
    with trainer, pytest.raises(Interrupted):
        trainer.fit(batches, validation=batches[10:12], observe=observe)
    assert "val_loss" not in (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8")
    trainer, batches = tiny_trainer(table)
    with trainer:
        trainer.fit(batches, validation=batches[10:12], resume="auto")
    assert [3, 6, 7] == [step for step, _ in evaluations(tmp_path / "run")]


def test_a_signal_during_the_last_save_leaves_it_whole(tmp_path: Path) -> None:
    def signalled(following: Any, **arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return following(**arguments)

    saver = stranger(plugin_with(around_save=hookimpl(lambda self: signalled)))
    trainer, batches = tiny_trainer(config(tmp_path / "run"), [saver])
    with trainer, pytest.raises(Interrupted) as caught:
        trainer.fit(batches)
    assert 130 == caught.value.exit_code
    trainer, batches = tiny_trainer(config(tmp_path / "run"), [saver])
    with trainer, pytest.raises(Interrupted):
        trainer.fit(batches, resume="auto")


def test_a_finished_run_that_is_resumed_has_one_row_of_its_evaluation(tmp_path: Path) -> None:
    table = config(tmp_path / "run", eval={"every": 3})
    summaries = []
    for _ in range(3):
        trainer, batches = tiny_trainer(table)
        with trainer:
            summaries.append(trainer.fit(batches, validation=batches[10:12], resume="auto"))
    assert [3, 6] == [step for step, _ in evaluations(tmp_path / "run")]
    assert 1 == len({summary["val_loss"] for summary in summaries})


def test_a_resumed_run_has_each_evaluation_once(tmp_path: Path) -> None:
    run = {"checkpoint_every": 3}
    for steps in (4, 8):
        table = config(tmp_path / "run", steps=steps, eval={"every": 3}, run=run)
        trainer, batches = tiny_trainer(table)
        with trainer:
            trainer.fit(batches, validation=batches[10:12], resume="auto", allow_changes=True)
        shutil.rmtree(tmp_path / "run/checkpoints/step-00000004", ignore_errors=True)
    assert [3, 6, 8] == [step for step, _ in evaluations(tmp_path / "run")]


@pytest.mark.parametrize(("every", "saved"), [(0, 6), (4, 4)])
def test_an_evaluation_that_raises_costs_no_training(
    tmp_path: Path, every: int, saved: int
) -> None:
    def broken() -> Iterator[Any]:
        yield batches[0]
        msg = "out of the loader"
        raise ZeroDivisionError(msg)

    trainer, batches = tiny_trainer(config(tmp_path / "run", eval={"every": every}))
    with trainer, pytest.raises(DataError) as caught:
        trainer.fit(batches, validation=broken())
    said = "the validation data raised ZeroDivisionError: out of the loader (test_fit.py:"
    assert str(caught.value).startswith(said)
    (path,) = checkpoints(tmp_path / "run/checkpoints")
    assert f"step-{saved:08d}" == path.name
    assert str(caught.value).endswith(f") at batch 1; saved {path}; go on with --resume auto")


def test_an_update_that_is_skipped_is_saved_and_evaluated_where_due(tmp_path: Path) -> None:
    table = config(tmp_path / "run", eval={"every": 3}, run={"checkpoint_every": 2, "keep": 0})
    trainer, batches = tiny_trainer(table)

    def loss_fn(model: Any, batch: Any) -> Any:
        loss = trainer_loss(model, batch)
        skipped = model.training and trainer.state.step in {1, 2}
        return Loss(loss.sum * float("nan"), loss.count) if skipped else loss

    trainer_loss = trainer._session.loop._loss_fn
    trainer._session.loop._loss_fn = loss_fn
    with trainer:
        trainer.fit(batches, validation=batches[10:12])
    assert [2, 4, 6] == [int(path.name[-8:]) for path in checkpoints(tmp_path / "run/checkpoints")]
    assert [3, 6] == [step for step, _ in evaluations(tmp_path / "run")]


def test_fitting_on_goes_to_the_end_and_no_further() -> None:
    trainer, batches = tiny_trainer(config())
    with trainer:
        trainer.fit(batches)
        assert 6 == trainer.fit(batches)["steps"]


def test_two_equal_runs_have_one_digest_and_another_seed_has_another() -> None:
    assert digest_after(3) == digest_after(3)
    assert digest_after(3) != digest_after(3, seed=1)


def test_resuming_a_finished_run_keeps_its_peaks(tmp_path: Path) -> None:
    config = {"train": {"steps": 4}, "run": {"dir": str(tmp_path / "run")}, "phases": CYCLE}
    peaks = []
    for _ in range(2):
        trainer, batches = tiny_trainer(config)
        with trainer:
            trainer.fit(batches, resume="auto")
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        peaks.append(summary["peak_bytes"])
    assert {"warmup", "full"} == peaks[0].keys()
    assert peaks[0] == peaks[1]


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer({"run": {"dir": str(tmp_path / "run")}})
    trainer.step(batches[0])
    with pytest.raises(KeyError), trainer:
        trainer.step({"x": batches[0]["x"]})
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    event = json.loads(lines[-1])
    assert ("run.failed", 1, "KeyError: 'y'") == (event["event"], event["step"], event["error"])
