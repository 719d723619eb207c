"""Frozen weights are saved once, beside the checkpoints that refer to them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide import CheckpointError, HybridTrainer, WrongCheckpointError
from neaptide.checkpoint import checkpoints, prune, read_manifest, verify
from neaptide.checkpoint.verify import BASE
from neaptide.cli import main

if TYPE_CHECKING:
    from pathlib import Path


class Adapted(nn.Module):
    """A large frozen map with a small trained one beside it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.base.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(width, 2), nn.Linear(2, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for frozen in self.base:
            x = torch.tanh(frozen(x)) + self.up(self.down(x))
        return x


def trainer_of(folder: Path, model: nn.Module | None = None, **config: Any) -> HybridTrainer:
    torch.manual_seed(0)
    model = model or Adapted().to(DEVICE)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
    run = {"dir": str(folder), "checkpoint_every": 2, "keep": 2, **config.pop("run", {})}
    return HybridTrainer(
        model,
        optimizer,
        loss_fn=lambda model, batch: model(batch).square().mean(),
        config={"run": run, "train": {"steps": 6}, **config},
    )


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 64, generator=generator).to(DEVICE) for _ in range(6)]


def fitted(folder: Path, resume: str | None = None, **config: Any) -> str:
    with trainer_of(folder, **config) as trainer:
        trainer.fit(batches(), resume=resume)
        return trainer.digest()


def bases(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("frozen-*"))


def nbytes(directory: Path) -> int:
    return (directory / "weights.safetensors").stat().st_size


def test_a_mostly_frozen_model_is_saved_once_and_resumes_exactly(tmp_path: Path) -> None:
    whole = fitted(tmp_path / "whole", run={"frozen": "copy"})
    assert fitted(tmp_path / "run") == whole
    (base,) = bases(tmp_path / "run")
    newest = checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert nbytes(base) > 10 * nbytes(newest)
    assert read_manifest(newest).facts[BASE].startswith(base.name.removeprefix("frozen-"))
    assert [] == bases(tmp_path / "whole")
    # Go on from the middle, in a directory to which the checkpoints were moved.
    shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "moved" / "checkpoints")
    shutil.rmtree(tmp_path / "moved" / "checkpoints" / newest.name)
    assert fitted(tmp_path / "moved", resume="auto") == whole


@pytest.mark.parametrize(
    ("width", "frozen", "referred"),
    [(64, "auto", True), (1, "auto", False), (1, "reference", True), (64, "copy", False)],
)
def test_by_default_only_where_more_than_half_is_frozen(
    tmp_path: Path, width: int, frozen: str, *, referred: bool
) -> None:
    model = Adapted(width).to(DEVICE)
    with trainer_of(tmp_path, model, run={"frozen": frozen}) as trainer:
        trainer.fit([batch[:, :width] for batch in batches()])
    assert referred == bool(bases(tmp_path))


def test_a_model_without_frozen_weights_has_no_second_file(tmp_path: Path) -> None:
    with trainer_of(tmp_path, nn.Linear(64, 64).to(DEVICE), run={"frozen": "reference"}) as trainer:
        trainer.fit(batches())
    assert [] == bases(tmp_path)


def test_a_checkpoint_of_the_users_own_choice_is_whole(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run") as trainer:
        trainer.step(batches()[0])
        trainer.save(tmp_path / "elsewhere" / "saved")
        expected = trainer.digest()
    assert ["saved"] == [path.name for path in (tmp_path / "elsewhere").iterdir()]
    with trainer_of(tmp_path / "other") as trainer:
        trainer.load(tmp_path / "elsewhere" / "saved")
        assert expected == trainer.digest()


def test_missing_frozen_weights_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(tmp_path)
    (base,) = bases(tmp_path)
    shutil.rmtree(base)
    newest = checkpoints(tmp_path / "checkpoints")[-1]
    with trainer_of(tmp_path) as trainer:
        before = trainer.digest()
        with pytest.raises(
            WrongCheckpointError, match=f"there is no .*{base.name} .*copy it there"
        ):
            trainer.load(newest)
        assert before == trainer.digest()
    assert 1 == main(["ckpt", "verify", str(newest)])
    assert f"frozen weights: cannot read {base}" in capsys.readouterr().out


@pytest.mark.parametrize("where", [40, -3])
def test_damaged_frozen_weights_are_refused(tmp_path: Path, where: int) -> None:
    fitted(tmp_path)
    (base,) = bases(tmp_path)
    content = bytearray((base / "weights.safetensors").read_bytes())
    content[where] ^= 1
    (base / "weights.safetensors").write_bytes(content)
    newest = checkpoints(tmp_path / "checkpoints")[-1]
    assert any("frozen weights" in problem for problem in verify(newest))
    with trainer_of(tmp_path) as trainer:
        before = trainer.digest()
        with pytest.raises(CheckpointError, match=r"weights\.safetensors: damaged"):
            trainer.load(newest)
        assert before == trainer.digest()


def test_other_frozen_weights_under_the_same_name_are_refused(tmp_path: Path) -> None:
    fitted(tmp_path / "run")
    model = Adapted().to(DEVICE)
    with torch.no_grad():
        model.base[0].weight.mul_(2.0)
    with trainer_of(tmp_path / "other", model) as trainer:
        trainer.fit(batches())
    (base,), (other,) = bases(tmp_path / "run"), bases(tmp_path / "other")
    assert base.name != other.name
    shutil.rmtree(base)
    shutil.copytree(other, base)
    newest = checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert verify(newest) == ["frozen weights: they have another sha256"]
    with (
        trainer_of(tmp_path / "run") as trainer,
        pytest.raises(CheckpointError, match="has other weights than its name says"),
    ):
        trainer.load(newest)


def test_damaged_frozen_weights_are_written_again_by_a_new_run(tmp_path: Path) -> None:
    expected = fitted(tmp_path)
    (base,) = bases(tmp_path)
    for directory in checkpoints(tmp_path / "checkpoints"):
        shutil.rmtree(directory)
    (base / "weights.safetensors").write_bytes(b"cut")
    assert fitted(tmp_path) == expected
    assert verify(checkpoints(tmp_path / "checkpoints")[-1]) == []


def test_what_is_frozen_may_change_and_old_weights_go(tmp_path: Path) -> None:
    with trainer_of(tmp_path) as trainer:
        root = tmp_path / "checkpoints"
        for step in (1, 2, 3):
            trainer.step(batches()[step])
            with torch.no_grad():
                trainer.model.base[0].weight.add_(1.0)  # by hand: it is no trained weight
            trainer.save(root.resolve() / f"step-{step:08d}")
        assert 3 == len(bases(tmp_path))
        trainer.step(batches()[0])
        trainer.save(root.resolve() / "step-00000004")
        expected = trainer.digest()
    prune(root, 2)
    assert 1 == len(bases(tmp_path))
    with trainer_of(tmp_path) as trainer:
        trainer.load(root / "step-00000004")
        assert expected == trainer.digest()


def test_a_checkpoint_of_any_name_keeps_its_frozen_weights(tmp_path: Path) -> None:
    root = (tmp_path / "checkpoints").resolve()
    (root / "frozen-mine").mkdir(parents=True)
    with trainer_of(tmp_path) as trainer:
        trainer.step(batches()[0])
        trainer.save(root / "best")
        with torch.no_grad():
            trainer.model.base[0].weight.add_(1.0)  # by hand: it is no trained weight
        for step in (2, 3):
            trainer.step(batches()[step])
            trainer.save(root / f"step-{step:08d}")
    prune(root, 1)
    assert [] == verify(root / "best")
    assert (root / "frozen-mine").is_dir()


def test_the_reference_is_in_the_manifest_alone(tmp_path: Path) -> None:
    fitted(tmp_path)
    newest = checkpoints(tmp_path / "checkpoints")[-1]
    manifest = json.loads((newest / "manifest.json").read_text(encoding="utf-8"))
    assert str(tmp_path) not in json.dumps(manifest)
