"""Tests of the converter: it is installed, and converts a file of the Trainer's settings."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

ARGUMENTS = {
    "output_dir": "out",
    "bf16": True,
    "fp16": False,
    "learning_rate": 5e-05,
    "max_steps": 300,
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "max_grad_norm": 1.0,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 20,
    "seed": 42,
    "deepspeed": None,
}
CONFIG = {
    "version": 1,
    "seed": 42,
    "train": {"steps": 300, "batch_size": 32, "clip_norm": 1.0},
    "optimizer": {"lr": 5e-05},
    "plugins": {"lr-schedule": {"name": "cosine", "warmup": 20}},
}


@pytest.fixture
def convert(tmp_path: Path) -> Any:
    """Return a function that converts `ARGUMENTS`, with changes, by the command line."""

    def call(*more: str, **changes: Any) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "training_args.json"
        path.write_text(json.dumps({**ARGUMENTS, **changes}), encoding="utf-8")
        command = [sys.executable, "-m", "neaptide", "config", "convert", str(path), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return call


def converted(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the JSON output of the command as a table."""
    assert 0 == done.returncode, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def test_what_has_a_counterpart_is_carried_and_the_rest_is_told(convert: Any) -> None:
    printed = converted(convert("--from", "trainer", "--json"))
    assert CONFIG == printed["config"]
    left = {remark["key"] for remark in printed["remarks"] if not remark["carried"]}
    assert {"output_dir", "bf16", "fp16", "num_train_epochs"} == left
    differs = [remark["key"] for remark in printed["remarks"] if remark["carried"]]
    assert ["gradient_accumulation_steps"] == differs


@pytest.mark.parametrize(
    ("changes", "section", "expected"),
    [
        ({"max_steps": -1}, "train", {"batch_size": 32, "clip_norm": 1.0}),
        ({"max_grad_norm": 0}, "train", {"steps": 300, "batch_size": 32}),
        (
            {"lr_scheduler_type": "constant"},
            "plugins",
            {"lr-schedule": {"name": "constant", "warmup": 0}},
        ),
        ({"lr_scheduler_type": "polynomial"}, "plugins", None),
    ],
    ids=str,
)
def test_a_section(convert: Any, changes: dict[str, Any], section: str, expected: Any) -> None:
    config = converted(convert("--from", "trainer", "--json", **changes))["config"]
    assert expected == config.get(section)


def test_it_is_recognised_though_it_has_keys_of_deepspeeds(convert: Any) -> None:
    done = convert("--to", "toml")
    assert 2 == done.returncode
    assert "these are settings of trainer; add --from trainer" in done.stderr


def test_a_wrong_type_is_one_line(convert: Any) -> None:
    done = convert("--from", "trainer", learning_rate="fast")
    assert (2, 'error: expected a number (got "fast", a string) @ learning_rate\n') == (
        done.returncode,
        done.stderr,
    )
