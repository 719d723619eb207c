"""A run from a configuration trains on the device: model, batches and loss are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from neaptide import HybridTrainer
from neaptide.run.assembly import build_data
from neaptide.run.feed import moved

if TYPE_CHECKING:
    from pathlib import Path

TASKS: dict[str, dict[str, Any]] = {
    "byte-gpt": {
        "model": {
            "name": "builtin:byte-gpt",
            "options": {"layers": 2, "width": 16, "heads": 2, "context": 8},
        },
        "data": {"name": "builtin:python-stdlib", "options": {"context": 8}},
    },
    "mlp": {
        "model": {"name": "builtin:mlp"},
        "data": {"name": "builtin:digits"},
    },
}


@pytest.mark.parametrize("task", TASKS)
def test_a_configured_run_trains_and_evaluates_on_the_device(task: str, tmp_path: Path) -> None:
    if task == "mlp":
        pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    config = {
        **TASKS[task],
        "train": {"steps": 4, "batch_size": 4, "device": "cuda"},
        "eval": {"batches": 1},
        "run": {"dir": str(tmp_path / "run")},
    }
    trainer = HybridTrainer.from_config(config)
    data = build_data(trainer.config, trainer.hooks)
    with trainer:
        trainer.fit(data)
        assert trainer.evaluate(data.validation) > 0
    assert {"cuda"} == {parameter.device.type for parameter in trainer.model.parameters()}


def test_a_batch_moves_with_its_structure() -> None:
    class Words:
        def to(self, device: torch.device) -> str:
            return f"on {device.type}"

    one = torch.ones(2)
    found = moved({"x": [one, (one, "text")], "n": 3}, torch.device("cuda"))
    assert ["cuda"] * 2 == [found["x"][0].device.type, found["x"][1][0].device.type]
    assert ("text", 3, list, tuple) == (
        found["x"][1][1], found["n"], type(found["x"]), type(found["x"][1]),
    )  # fmt: skip
    assert "on cuda" == moved(Words(), torch.device("cuda"))
