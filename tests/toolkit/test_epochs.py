"""`train.epochs` trains for so many passes over the data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import warm
from torch import nn

from neaptide import ConfigError, HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide.run import assembly
from neaptide_toolkit.dry_run.running import dry_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KINDS = "neaptide_toolkit.testing.kinds"
BATCHES = 4


class Endless:
    """Batches without a length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.zeros(2, 8)


def endless() -> Endless:
    return Endless()


def config(**train: Any) -> dict[str, Any]:
    return {
        "model": {"name": f"{KINDS}:deep", "options": {"layers": 1, "width": 8}},
        "data": {"name": f"{KINDS}:sequences", "options": {"length": 2, "width": 8}},
        "train": {"device": "cpu", **train},
        "plugins": {"lr-schedule": {"name": "linear"}},
    }


def test_every_batch_is_used_as_often_as_there_are_epochs() -> None:
    with HybridTrainer.from_config(config(epochs=3)) as trainer:
        assert (trainer.config.train.steps, trainer.config.train.epochs) == (3 * BATCHES, None)
        trainer.fit(assembly.build_data(trainer.config, trainer.hooks))
        assert trainer.state.step == 3 * BATCHES


def test_a_run_by_epochs_is_one_by_updates() -> None:
    digests = []
    for train in ({"epochs": 2}, {"steps": 2 * BATCHES}):
        with HybridTrainer.from_config(config(**train)) as trainer:
            trainer.fit(assembly.build_data(trainer.config, trainer.hooks))
            digests.append(trainer.digest())
    assert digests[0] == digests[1]


def test_the_command_line_trains_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    given = {"version": 1, **config(epochs=2), "run": {"dir": str(tmp_path / "run")}}
    file.write_text(json.dumps(given), encoding="utf-8")
    command = ["-m", "neaptide", "run", str(file)]
    for more in ([], ["--resume", "auto"]):
        done = warm.run([*command, *more])
        assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text(encoding="utf-8"))
    assert summary["steps"] == 2 * BATCHES


def test_a_plan_needs_no_length() -> None:
    given = config(epochs=2)
    given["data"] = {"name": f"{__name__}:endless"}
    dry_run(configured(given)[0], (), "cpu")


def refused(given: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        HybridTrainer.from_config(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_counted_is_refused_in_one_line() -> None:
    assert "are both set; remove one (got 2) @ train.epochs" in refused(config(epochs=2, steps=7))
    unknown = config(epochs=2)
    unknown["data"] = {"name": f"{__name__}:endless"}
    assert "does not say how many batches it has" in refused(unknown)
    with pytest.raises(ConfigError, match=r"set train.steps to 2 \* len\(data\)"):
        HybridTrainer(nn.Linear(2, 2), config={"train": {"epochs": 2}})
