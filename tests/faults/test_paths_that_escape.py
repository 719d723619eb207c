"""Names and links that lead elsewhere: nothing is made, changed or deleted outside the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from folders import tree
from support import tiny_trainer
from torch import nn

from neaptide import CheckpointError, HybridTrainer
from neaptide.checkpoint import prune, save, verify
from neaptide.cli import main

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["../../x", "/x", "a/../../x", "..", "a\0b", "~/x", "C:\\x", "\N{WAVE DASH}/x", ""]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a directory with a checkpoint, which nothing may touch."""
    save(tmp_path / "outside" / "step-00000001", {"state": {"x": torch.ones(3)}}, 1, {})
    (tmp_path / "outside" / "file").write_text("mine")
    return tmp_path / "outside"


def fitted(directory: Path, **run: Any) -> dict[str, Any]:
    config = {"run": {"dir": str(directory), "keep": 1, **run}, "train": {"steps": 4}}
    trainer, batches = tiny_trainer(config)
    with trainer:
        return trainer.fit(batches)


class Odd(nn.Module):
    """Its parameters, buffers and state have names that are paths."""

    def __init__(self) -> None:
        super().__init__()
        for number, name in enumerate(NAMES):
            key = name.replace(".", "") or "nothing"
            self.register_parameter(f"{key}{number}", nn.Parameter(torch.full((2,), number * 1.0)))
            self.register_buffer(f"{key}buffer{number}", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((x * parameter).sum() for parameter in self.parameters()) ** 2


class Keyed:
    """The user's own object, with such keys."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {name: torch.ones(2) for name in NAMES}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_keys_of_tensors_are_no_paths(tmp_path: Path) -> None:
    model, keyed = Odd(), Keyed()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with HybridTrainer(
        model,
        optimizer,
        loss_fn=lambda model, batch: model(batch),
        stateful=dict.fromkeys(NAMES, keyed),
    ) as trainer:
        trainer.step(torch.ones(2))
        path = trainer.save(tmp_path / "root" / "saved")
        before = trainer.digest()
        trainer.step(torch.ones(2))
        trainer.load(path)
        assert before == trainer.digest()
    assert [tmp_path / "root"] == list(tmp_path.iterdir())
    assert [path] == list((tmp_path / "root").iterdir())
    assert all(file.is_file() for file in path.iterdir())
    assert set(NAMES) == keyed.state.keys()


@pytest.mark.parametrize("name", NAMES)
def test_names_of_sections_and_streams_are_checked(tmp_path: Path, name: str) -> None:
    for given in ({"sections": {name: 1}}, {"sections": {}, "streams": {name: []}}):
        with pytest.raises(CheckpointError, match="cannot name a file"):
            save(tmp_path / "root" / "saved", step=1, facts={}, **given)
    assert {"root"} == set(tree(tmp_path))


@pytest.mark.parametrize("name", ["...toml", "....toml", ".hidden.toml"])
def test_a_run_named_after_dots_stays_below_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(
        'model.name = "builtin:mlp"\ndata.name = "builtin:digits"\ntrain.steps = 1\n'
    )
    code = main(["run", name, "--json"])
    assert {name, "runs"} == {path.name for path in tmp_path.iterdir()}
    assert 0 == code
    assert 1 == len(list((tmp_path / "runs").iterdir()))


@pytest.mark.parametrize("path", ["../outside", "sub/../../outside", "a\0b"])
@pytest.mark.parametrize("verb", ["verify", "list"])
def test_ckpt_reads_and_never_writes(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, verb: str, path: str
) -> None:
    (tmp_path / "here" / "sub").mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(outside)
    monkeypatch.chdir(tmp_path / "here")
    (outside / "step-00000001").rename(outside / ".old-step-00000001")  # as a crash leaves it
    before = tree(tmp_path)
    for given in (path, "link", str(outside)):
        assert main(["ckpt", verb, given]) in {0, 1, 2}
    assert before == tree(tmp_path)


@pytest.mark.parametrize("setting", ["resume", "preset"])
def test_names_on_the_command_line(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "tiny.toml").write_text(
        'model.name = "builtin:mlp"\ndata.name = "builtin:digits"\ntrain.steps = 1\n'
    )
    monkeypatch.chdir(tmp_path / "here")
    before = tree(outside)
    for value in ("../outside/step-00000001", "../outside", "/etc/passwd", "../../x", "a\0b"):
        assert 0 != main(["run", "tiny.toml", f"--{setting}", value])
    assert before == tree(outside)
    assert {"here", "outside"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("target", ["step-00000001", "new", "file"])
def test_a_checkpoint_that_is_a_link_is_not_saved_through(
    tmp_path: Path, outside: Path, target: str
) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"
    trainer, batches = tiny_trainer(
        {"run": {"dir": str(tmp_path / "run"), "checkpoint_every": 2}, "train": {"steps": 3}}
    )
    checkpoints.mkdir()
    before = tree(outside)
    with trainer:

        def observe(result: Any, state: Any) -> None:
            if state.step == 1:
                (checkpoints / "step-00000002").symlink_to(outside / target)

        trainer.fit(batches, observe=observe)
    assert before == tree(outside)
    assert [] == verify(checkpoints / "step-00000003")
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "is a symbolic link, so that saving would write elsewhere" in events


def test_pruning_a_link_leaves_what_it_leads_to(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "checkpoints"
    for step in (2, 3):
        save(root / f"step-0000000{step}", {"state": 1}, step, {})
    (root / "step-00000001").symlink_to(outside / "step-00000001")
    before = tree(outside)
    prune(root, 1)
    assert before == tree(outside)
    assert ["step-00000003"] == [path.name for path in root.iterdir()]


def test_a_directory_reached_by_a_link_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "large-disk").mkdir()
    (tmp_path / "link").symlink_to("large-disk")
    summary = fitted(tmp_path / "link" / "run" / ".." / "run", checkpoint_every=2)
    assert 4 == summary["steps"]
    assert [] == verify(tmp_path / "large-disk" / "run" / "checkpoints" / "step-00000004")
    assert {"large-disk", "link"} == {path.name for path in tmp_path.iterdir()}
