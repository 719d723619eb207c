"""A run whose newest checkpoint is damaged goes on from the one before, with a warning."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support import tiny_trainer

from neaptide import CheckpointError
from neaptide.api.rng import seed_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = 6


def fit(directory: Path, steps: int, resume: str | None = None) -> dict[str, Any]:
    run = {"dir": str(directory), "checkpoint_every": 2, "keep": 0}
    seed_all(0)
    trainer, batches = tiny_trainer({"run": run, "train": {"steps": steps}})
    with trainer:
        return trainer.fit(batches, resume=resume, allow_changes=True)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with checkpoints after 2, 4 and 5 updates."""
    directory = tmp_path_factory.mktemp("template") / "run"
    fit(directory, 5)
    return directory


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the whole run."""
    return str(fit(tmp_path_factory.mktemp("whole") / "run", STEPS)["digest"])


def change(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(checkpoint: Path) -> None:
        path = checkpoint / name
        path.write_bytes(edit(path.read_bytes()))

    return damage


def flipped(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]


def swapped(checkpoint: Path) -> None:
    (checkpoint / "rng.json").rename(checkpoint / "x")
    (checkpoint / "data.json").rename(checkpoint / "rng.json")
    (checkpoint / "x").rename(checkpoint / "data.json")


def duplicated(checkpoint: Path) -> None:
    shutil.copy(checkpoint / "weights.safetensors", checkpoint / "optimizer.safetensors")


def copied(checkpoint: Path) -> None:
    shutil.copy(checkpoint / "weights.safetensors", checkpoint / "weights-2.safetensors")


def from_before(checkpoint: Path) -> None:
    shutil.copy(checkpoint.with_name("step-00000004") / "weights.safetensors", checkpoint)


def emptied(checkpoint: Path) -> None:
    for path in checkpoint.iterdir():
        path.unlink()


def a_file(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.write_text("")


DAMAGE: dict[str, Callable[[Path], None]] = {
    **{
        f"{what} {name}": change(name, edit)
        for name in ("manifest.json", "weights.safetensors", "training.json")
        for what, edit in {
            "truncated": lambda data: data[: len(data) // 2],
            "cut by a byte": lambda data: data[:-1],
            "grown": lambda data: data + b"\n",
            "zeroed": lambda data: bytes(len(data)),
            "flipped": flipped,
            "empty": lambda data: b"",
        }.items()
    },
    **{
        f"without {name}": lambda checkpoint, name=name: (checkpoint / name).unlink()  # type: ignore[misc]  # mypy cannot infer a default's type
        for name in ("manifest.json", "weights.safetensors", "rng.json")
    },
    "swapped": swapped,
    "duplicated": duplicated,
    "copied": copied,
    "from before": from_before,
    "emptied": emptied,
    "a file": a_file,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_resume_auto_takes_the_newest_valid_one_and_says_so(
    tmp_path: Path,
    template: Path,
    expected: str,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(template, directory)
    DAMAGE[damage](directory / "checkpoints" / "step-00000005")
    summary = fit(directory, STEPS, resume="auto")
    assert expected == summary["digest"]
    (line,) = [one for one in caplog.text.splitlines() if "skipped" in one]
    assert "checkpoint step-00000005 is skipped: " in line


def test_two_damaged_ones_are_two_warnings(
    tmp_path: Path, template: Path, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(template, directory)
    for step in (4, 5):
        emptied(directory / "checkpoints" / f"step-0000000{step}")
    assert expected == fit(directory, STEPS, resume="auto")["digest"]
    assert 2 == caplog.text.count("is skipped: ")


def test_when_none_is_left_training_does_not_start_over_silently(
    tmp_path: Path, template: Path
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(template, directory)
    for step in (2, 4, 5):
        emptied(directory / "checkpoints" / f"step-0000000{step}")
    with pytest.raises(CheckpointError, match="can be loaded; set run"):
        fit(directory, STEPS, resume="auto")
