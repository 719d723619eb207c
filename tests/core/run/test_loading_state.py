"""State that a plugin, an object of the user or an optimizer cannot load ends in one line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import plugin_with, stranger, tiny_trainer

from neaptide import HybridTrainer
from neaptide.errors import CheckpointError, WrongCheckpointError
from neaptide.run.signals import Interrupted
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    from pathlib import Path

    from neaptide import PluginSpec


class OwnError(BaseException):
    """What a stranger may derive from BaseException, with a text that cannot be made."""

    def __str__(self) -> str:
        raise KeyError


ERRORS: dict[str, tuple[BaseException, str]] = {
    "KeyError": (KeyError("window"), "KeyError: 'window'"),
    "TypeError": (TypeError("two\nlines"), "TypeError: two lines"),
    "ValueError": (ValueError("too short"), "ValueError: too short"),
    "OSError": (OSError(5, "Input/output error"), "OSError: [Errno 5] Input/output error"),
    "an own BaseException": (OwnError(), "OwnError: its text cannot be read"),
    "what a terminal obeys": (
        ValueError("\x1b[2Jgone\x07 \u202e"),
        "ValueError: \\u001b[2Jgone\\u0007 \\u202e",
    ),
}
HALF = "the run is half loaded: make a new trainer; load an older checkpoint"


def raises(error: BaseException) -> Any:
    def method(*_: Any) -> None:
        raise error

    return method


def keeping(**members: Any) -> PluginSpec:
    state = {"state_dict": lambda _: {"seen": 1}, "load_state_dict": lambda *_: None}
    return stranger(plugin_with(**(state | members)), "keeper")


class Teacher:
    """An object of the user."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def state_dict(self) -> dict[str, int]:
        return {"seen": 1}

    def load_state_dict(self, _: dict[str, int]) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trainer, batches = tiny_trainer(None, [keeping()], stateful={"teacher": Teacher()})
    with trainer:
        trainer.step(batches[0])
        return trainer.save(tmp_path_factory.mktemp("saved") / "checkpoint")


@pytest.mark.parametrize("kind", ERRORS)
def test_a_plugin_that_cannot_load_its_state_is_one_line(saved: Path, kind: str) -> None:
    error, told = ERRORS[kind]
    plugin = keeping(load_state_dict=raises(error))
    trainer, _ = tiny_trainer(None, [plugin], stateful={"teacher": Teacher()})
    with trainer, pytest.raises(CheckpointError) as caught:
        trainer.load(saved)
    assert (
        f"cannot load checkpoint {saved}: plugin 'keeper' cannot load its part of section "
        f"'plugins' ({told}); {HALF}, or resume without plugin 'keeper' (--allow-changes)"
    ) == str(caught.value)
    assert error is caught.value.__cause__


@pytest.mark.parametrize("kind", ERRORS)
def test_a_plugin_that_refuses_a_state_does_so_before_the_run_is_changed(
    saved: Path, kind: str
) -> None:
    error, told = ERRORS[kind]
    plugin = keeping(check_state_dict=raises(error))
    trainer, batches = tiny_trainer(None, [plugin], 5, stateful={"teacher": Teacher()})
    with trainer:
        trainer.step(batches[1])
        before = trainer.digest()
        with pytest.raises(CheckpointError) as caught:
            trainer.load(saved)
        assert before == trainer.digest()
    assert f"plugin 'keeper' cannot load its part of section 'plugins' ({told})" in str(
        caught.value
    )
    assert "half" not in str(caught.value)


@pytest.mark.parametrize("kind", ERRORS)
def test_an_object_that_cannot_load_its_state_is_one_line(saved: Path, kind: str) -> None:
    error, told = ERRORS[kind]
    trainer, _ = tiny_trainer(None, [keeping()], stateful={"teacher": Teacher(error)})
    with trainer, pytest.raises(CheckpointError) as caught:
        trainer.load(saved)
    assert (
        f"cannot load checkpoint {saved}: the object 'teacher' cannot load its part of section "
        f"'extra' ({told}); {HALF}, or resume without the object 'teacher' (--allow-changes)"
    ) == str(caught.value)


def test_an_optimizer_that_cannot_load_its_state_is_one_line(tmp_path: Path) -> None:
    class Picky(torch.optim.SGD):
        def load_state_dict(self, state_dict: Any) -> None:
            raise KeyError(len(state_dict["param_groups"]))

    def trainer() -> HybridTrainer:
        task = tiny_task()
        return HybridTrainer(task.model, Picky(task.model.parameters(), 0.1), loss_fn=tiny_loss)

    with trainer() as first:
        first.step(tiny_task().batches[0])
        directory = first.save(tmp_path / "checkpoint")
    with trainer() as second, pytest.raises(CheckpointError) as caught:
        second.load(directory)
    said = f"wrong form of section 'optimizer' (KeyError: 1); {HALF}"
    assert f"cannot load checkpoint {directory}: {said}" == str(caught.value)


NO_FAULTS = (
    *(KeyboardInterrupt(), SystemExit(3), GeneratorExit(), asyncio.CancelledError()),
    *(Interrupted(2, "stopped by signal 2"), torch.OutOfMemoryError("none left")),
)


@pytest.mark.parametrize("error", NO_FAULTS, ids=repr)
def test_what_is_no_fault_of_the_state_stays_what_it_is(saved: Path, error: BaseException) -> None:
    plugin = keeping(load_state_dict=raises(error))
    trainer, _ = tiny_trainer(None, [plugin], stateful={"teacher": Teacher()})
    with trainer, pytest.raises(type(error)) as caught:
        trainer.load(saved)
    assert error is caught.value


@pytest.mark.parametrize("error", [KeyError("window"), KeyboardInterrupt()], ids=repr)
def test_a_run_that_is_half_loaded_is_not_trained_and_not_saved(
    saved: Path, tmp_path: Path, error: BaseException
) -> None:
    earlier = tmp_path / "run/steps.csv"
    earlier.parent.mkdir()
    earlier.write_text("rows of an earlier run\n", encoding="utf-8")
    teacher = Teacher(error)
    config = {"run": {"dir": str(earlier.parent)}, "train": {"steps": 3}}
    trainer, batches = tiny_trainer(config, [keeping()], stateful={"teacher": teacher})
    with trainer:
        with pytest.raises(CheckpointError if isinstance(error, Exception) else type(error)):
            trainer.load(saved, allow_changes=True)
        for act in (
            lambda: trainer.step(batches[0]),
            lambda: trainer.fit(batches),
            lambda: trainer.save(tmp_path / "half"),
        ):
            with pytest.raises(
                CheckpointError, match=f"half loaded, from {saved}: make a new trainer"
            ):
                act()
        assert earlier.read_text(encoding="utf-8") == "rows of an earlier run\n"
        assert not (tmp_path / "half").exists()
        teacher.error = None
        trainer.load(saved, allow_changes=True)
        trainer.step(batches[0])
        assert 2 == trainer.state.step


def test_a_load_that_is_refused_leaves_the_run_whole(saved: Path, tmp_path: Path) -> None:
    trainer, batches = tiny_trainer(None, [keeping()], stateful={"teacher": Teacher()})
    with trainer:
        with pytest.raises(WrongCheckpointError):
            trainer.load(tmp_path / "none")
        trainer.step(batches[0])
        trainer.save(tmp_path / "whole")
        trainer.load(tmp_path / "whole")


def test_the_way_out_is_one(saved: Path) -> None:
    trainer, _ = tiny_trainer(stateful={"teacher": Teacher()})
    with trainer:
        with pytest.raises(WrongCheckpointError, match=r"keeper \(only saved\)"):
            trainer.load(saved)
        trainer.load(saved, allow_changes=True)
        assert 1 == trainer.state.step


def test_options_of_an_optimizer_that_have_no_effect_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"model": {"name": "builtin:mlp"}, "data": {"name": "builtin:digits"}}
    before, now = {"name": "adamw", "lr": 1e-3}, {"name": "adamw", "lr": 1e-5}
    with HybridTrainer.from_config({**config, "optimizer": before}) as trainer:
        trainer.save(tmp_path / "saved")
    with HybridTrainer.from_config({**config, "optimizer": now}) as trainer:
        trainer.load(tmp_path / "saved", allow_changes=True)
        assert 1e-3 == trainer.optimizer.param_groups[0]["lr"]
    (record,) = caplog.records
    assert record.getMessage().endswith("may have no effect: optimizer.lr (saved 0.001, now 1e-05)")
