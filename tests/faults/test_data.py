"""Data that is empty, ends, is too short, cannot be repeated or raises: one line, nothing lost."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import same_tensors, tensors_of, tiny_trainer

from neaptide import DataError, WrongCheckpointError
from neaptide.checkpoint import checkpoints
from neaptide.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def config(directory: Path | None = None, steps: int = 8, **more: Any) -> dict[str, Any]:
    """Return a short run."""
    run = {} if directory is None else {"run": {"dir": str(directory)}}
    return {"train": {"steps": steps}, **run, **more}


class RecordError(Exception):
    """A data set's own error."""


class Raising:
    """Batches of which the one at `bad` cannot be read."""

    def __init__(self, batches: list[Any], bad: int, error: Exception) -> None:
        self.batches, self.bad, self.error = batches, bad, error

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(self.batches):
            if index == self.bad:
                raise self.error
            yield batch


@pytest.mark.parametrize("bad", [0, 5])
def test_data_that_raises_is_named_and_what_was_trained_is_saved(tmp_path: Path, bad: int) -> None:
    trainer, batches = tiny_trainer(config())
    with trainer:
        expected = trainer.fit(batches)["digest"]
    directory = tmp_path / "run"
    trainer, batches = tiny_trainer(config(directory))
    with trainer, pytest.raises(DataError) as caught:
        trainer.fit(Raising(batches, bad, RecordError("record 17:\n  no label")))
    assert isinstance(caught.value.__cause__, RecordError)
    said = "the training data raised RecordError: no label (test_data.py:"
    assert str(caught.value).startswith(said)
    saved = checkpoints(directory / "checkpoints")
    if bad == 0:
        assert str(caught.value).endswith(") at batch 0")
        assert [] == saved
    else:
        assert [f"step-{bad:08d}"] == [path.name for path in saved]
        where = f") at batch {bad}; saved {saved[0]}; go on with --resume auto"
        assert str(caught.value).endswith(where)
    trainer, batches = tiny_trainer(config(directory))
    with trainer:
        assert expected == trainer.fit(batches, resume="auto")["digest"]


class Unopened:
    """Batches that can be asked for `passes` times, and not once more."""

    def __init__(self, batches: list[Any], passes: int) -> None:
        self.batches, self.passes = batches, passes

    def __iter__(self) -> Iterator[Any]:
        self.passes -= 1
        if self.passes < 0:
            msg = "the share is gone"
            raise RecordError(msg)
        return iter(self.batches)


@pytest.mark.parametrize("passes", [0, 1])
def test_data_whose_next_pass_does_not_begin_is_named(tmp_path: Path, passes: int) -> None:
    trainer, batches = tiny_trainer(config(tmp_path / "run"))
    with trainer, pytest.raises(DataError) as caught:
        trainer.fit(Unopened(batches[:3], passes))
    said = "the training data raised RecordError: the share is gone (test_data.py:"
    assert str(caught.value).startswith(said)
    saved = [path.name for path in checkpoints(tmp_path / "run/checkpoints")]
    assert (["step-00000003"] if passes else []) == saved


def test_the_index_counts_from_the_start_of_the_pass(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer(config(tmp_path / "run", steps=6))
    with trainer:
        trainer.fit(batches[:4])
    trainer, batches = tiny_trainer(config(tmp_path / "run", steps=9))
    with trainer, pytest.raises(DataError, match=r"at batch 3;"):
        trainer.fit(Raising(batches[:4], 3, RecordError("bad")), resume="auto", allow_changes=True)
    assert 7 == trainer.state.step


class Records(torch.utils.data.Dataset[torch.Tensor]):
    """A data set with a record that cannot be read."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            msg = "record 5 is damaged"
            raise RecordError(msg)
        return torch.zeros(2)

    def __len__(self) -> int:
        return 8


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12 on
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_out_of_a_loader_is_one_line(workers: int) -> None:
    loader = torch.utils.data.DataLoader(Records(), batch_size=2, num_workers=workers)
    trainer, _ = tiny_trainer(config())
    trainer._session.loop._loss_fn = lambda model, batch: sum(p.sum() for p in model.parameters())
    with trainer, pytest.raises(DataError) as caught:
        trainer.fit(loader)
    assert "record 5 is damaged (" in str(caught.value)
    assert str(caught.value).endswith(") at batch 2; not saved: no run.dir")
    assert "\n" not in str(caught.value)


def test_a_full_disk_does_not_hide_what_the_data_said(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer(config(tmp_path / "run"))

    def observe(result: Any, state: Any) -> None:
        (tmp_path / "run/checkpoints").write_text("in the way", encoding="utf-8")

    with trainer, pytest.raises(DataError) as caught:
        trainer.fit(Raising(batches, 1, RecordError("bad")), observe=observe)
    assert "the training data raised RecordError: bad" in str(caught.value)
    assert ") at batch 1; not saved: " in str(caught.value)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_out_of_memory_keeps_its_type(error: Exception) -> None:
    trainer, batches = tiny_trainer(config())
    with trainer, pytest.raises(type(error)):
        trainer.fit(Raising(batches, 2, error))


def test_what_a_step_raises_is_not_the_datas_fault() -> None:
    trainer, _ = tiny_trainer(config())
    with trainer, pytest.raises((TypeError, KeyError)) as caught:
        trainer.fit([7, 8])
    assert "feed.py" not in {frame.filename for frame in traceback.extract_tb(caught.tb)}


def test_a_generator_ends_in_one_line_with_its_batches_saved(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer(config(tmp_path / "run"))
    with trainer, pytest.raises(DataError) as caught:
        trainer.fit(batch for batch in batches[:5])
    (saved,) = checkpoints(tmp_path / "run/checkpoints")
    assert str(caught.value) == (
        "the training data ended after 5 batches and gives none when it is iterated again (is it "
        "a generator?); pass a list or a DataLoader, or lower train.steps; "
        f"saved {saved}; go on with --resume auto"
    )
    assert "step-00000005" == saved.name


def test_what_is_no_iterable_is_one_line() -> None:
    trainer, _ = tiny_trainer(config())
    with trainer, pytest.raises(DataError) as caught:
        trainer.fit(7)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "the training data is not iterable (got 'int'); pass a list or a DataLoader"
    )


def test_data_shorter_than_an_accumulation_is_gone_on_with_in_the_next_pass() -> None:
    settings = {"gradient-accumulation": {"steps": 4, "across_steps": True}}
    short, batches = tiny_trainer(config(steps=3, plugins=settings))
    with short:
        assert 3 == short.fit(batches[:3])["steps"]
    long, batches = tiny_trainer(config(steps=3, plugins=settings))
    with long:
        long.fit(batches[:3] * 4)
    assert 12 == short.state.batches == long.state.batches
    assert same_tensors(tensors_of(short.model), tensors_of(long.model))


class Resumable:
    """Data that says where it stands, and may stand at the end of a pass."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.at = batches, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < len(self.batches):
            self.at += 1
            yield self.batches[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def test_data_that_stands_at_the_end_of_a_pass_is_gone_on_with(tmp_path: Path) -> None:
    whole, batches = tiny_trainer(config())
    with whole:
        expected = whole.fit(Resumable(batches[:4]))["digest"]
    for steps in (4, 8):
        trainer, batches = tiny_trainer(config(tmp_path / "run", steps))
        with trainer:
            digest = trainer.fit(Resumable(batches[:4]), resume="auto", allow_changes=True)[
                "digest"
            ]
    assert expected == digest


def test_data_that_cannot_load_its_position_is_refused_in_one_line(tmp_path: Path) -> None:
    class Other(Resumable):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.at = state["place"]

    trainer, batches = tiny_trainer(config(tmp_path / "run", 4))
    with trainer:
        trainer.fit(Resumable(batches[:4]))
    trainer, batches = tiny_trainer(config(tmp_path / "run", 8))
    with trainer, pytest.raises(WrongCheckpointError, match=r"KeyError: 'place' .*use the same"):
        trainer.fit(Other(batches[:4]), resume="auto", allow_changes=True)


TASK = """
from torch import nn

def model():
    module = nn.Linear(2, 1)
    return module, lambda model, batch: model(batch).square().mean()

def data(count=3):
    import torch
    for index in range(count):
        yield torch.ones(4, 2)
    if count == 2:
        raise KeyError("label")

def train(count=3):
    return data(count), None
"""


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "the training data gave no batch; check [data] or the loader (is it used up?)"),
        (2, "the training data raised KeyError: 'label' (task_of_mine.py:13) at batch 2; saved "),
        (3, "the training data ended after 3 batches and gives none when it is iterated again"),
    ],
)
def test_the_command_line_says_it_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "task_of_mine.py").write_text(TASK, encoding="utf-8")
    (tmp_path / "run.toml").write_text(
        f"[model]\nname='task_of_mine:model'\n[data]\nname='task_of_mine:train'\n"
        f"options={{count={count}}}\n[train]\nsteps=9\n",
        encoding="utf-8",
    )
    assert 1 == main(["run", "run.toml", "--quiet"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")
