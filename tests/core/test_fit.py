"""A whole run over data: how it ends, when it saves and evaluates, and what it sums up."""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support import CYCLE, digest_after, tiny_trainer

from neaptide import Data, DataError

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
    assert NOTHING == str(caught.value)
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
    assert not (tmp_path / "run/metrics.jsonl").exists()


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


def test_fitting_on_goes_to_the_end_and_no_further() -> None:
    trainer, batches = tiny_trainer(config())
    with trainer:
        trainer.fit(batches)
        assert 6 == trainer.fit(batches)["steps"]


def test_two_equal_runs_have_one_digest_and_another_seed_has_another() -> None:
    assert digest_after(3) == digest_after(3)
    assert digest_after(3) != digest_after(3, seed=1)
