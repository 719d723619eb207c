"""A training goes on from Trainer's own checkpoints, ours and the plain one's, to the bit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hf_trainers import assert_same, train
from transformers import Trainer, TrainerCallback

from neaptide import WrongCheckpointError
from neaptide_toolkit.integrations.transformers import NeaptideTrainer
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*loss_type=None.*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
    pytest.mark.filterwarnings("ignore:.*mtime may not be reliable.*"),  # transformers 4
]
EXACT = ["layer-streaming", "optimizer-offload"]
SAVING = {
    "save_strategy": "steps",
    "save_steps": 2,
    "num_train_epochs": 2,
    "gradient_accumulation_steps": 2,
}


def ours(plugins: list[Any], **more: Any) -> dict[str, Any]:
    return {"neaptide_plugins": plugins, **more}


def assert_ends_alike(resumed: Any, whole: Any) -> None:
    """Check the weights, and what was logged after the resume."""
    for name, weight in whole.weights.items():
        assert torch.equal(resumed.weights[name].cpu(), weight.cpu()), name
    assert resumed.logs[-4:-1] == whole.logs[-4:-1]


def test_a_resumed_training_ends_like_one_that_was_not_stopped(tmp_path: Path) -> None:
    whole = train(NeaptideTrainer, tmp_path, given=ours(EXACT), **SAVING)
    theirs = train(Trainer, tmp_path / "theirs", **SAVING)
    assert_same(whole, theirs)
    path = str(tmp_path / "checkpoint-2")
    resumed = train(NeaptideTrainer, tmp_path, given=ours(EXACT), resume=path, **SAVING)
    assert resumed.trainer.state.global_step == 6
    assert_ends_alike(resumed, whole)


def test_a_checkpoint_of_the_plain_trainer_is_gone_on_from_and_back(tmp_path: Path) -> None:
    theirs = train(Trainer, tmp_path / "theirs", **SAVING)
    path = str(tmp_path / "theirs" / "checkpoint-2")
    there = train(NeaptideTrainer, tmp_path / "ours", given=ours(EXACT), resume=path, **SAVING)
    assert_ends_alike(there, theirs)
    path = str(tmp_path / "ours" / "checkpoint-4")
    back = train(Trainer, tmp_path / "theirs", resume=path, **SAVING)
    assert_ends_alike(back, theirs)


class StopsAt(TrainerCallback):  # type: ignore[misc] - transformers has no types here
    """Stops a training from outside, as an end of the time would, after a save."""

    def on_save(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == 4


def test_phases_and_plugins_go_on_where_they_were(tmp_path: Path) -> None:
    phases = {"warmup": {"steps": 1}, "full": {"steps": 1}, "correct": {"steps": 1}}
    given = ours([STEADY_PREDICTOR, "ema"], neaptide_config={"phases": phases})
    digests: list[str] = []

    class Watched(NeaptideTrainer):
        def _end(self, error: BaseException | None = None) -> None:
            if self._pieces is not None:
                state = self._pieces.hybrid.state
                counts = f"{state.step} {state.jumps} {state.batches}"
                digests.append(f"{self._pieces.hybrid.digest()} {counts}")
            super()._end(error)

    whole = train(Watched, tmp_path / "whole", given=given, **SAVING)
    train(Watched, tmp_path / "part", given=given, callbacks=(StopsAt(),), **SAVING)
    path = str(tmp_path / "part" / "checkpoint-4")
    resumed = train(Watched, tmp_path / "part", given=given, resume=path, **SAVING)
    assert_ends_alike(resumed, whole)
    first, stopped, again = (one.split() for one in digests)
    assert first == again != stopped
    assert int(first[2]) > int(stopped[2]) > 0
    assert (first[1], first[3]) == ("6", "12")


class SavesInTheMiddle(TrainerCallback):  # type: ignore[misc] - transformers has no types here
    """Ends an epoch in the middle of an accumulation, and the training after the save there."""

    def on_substep_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_epoch_stop = state.global_step == 1

    def on_epoch_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        control.should_save = control.should_training_stop = True


def test_gradients_of_an_update_that_was_not_made_are_dropped(tmp_path: Path) -> None:
    ends = []
    for cls, given in ((Trainer, {}), (NeaptideTrainer, ours(EXACT))):
        folder = tmp_path / cls.__name__
        train(cls, folder, given=given, callbacks=(SavesInTheMiddle(),), **SAVING)
        path = str(folder / "checkpoint-1")
        ends.append(train(cls, folder, given=given, resume=path, **SAVING))
    theirs, mine = ends
    assert_ends_alike(mine, theirs)


def test_old_checkpoints_are_deleted_whole_and_the_newest_is_enough(tmp_path: Path) -> None:
    given = ours(EXACT)
    whole = train(NeaptideTrainer, tmp_path, given=given, save_total_limit=1, **SAVING)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-6"]
    steps = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text("utf-8"))
    assert steps["global_step"] == 6
    again = {**SAVING, "num_train_epochs": 3}
    longer = train(
        NeaptideTrainer, tmp_path, given=given, resume=str(tmp_path / "checkpoint-6"), **again
    )
    assert longer.trainer.state.global_step == 9
    assert whole.trainer.state.global_step == 6


def test_other_plugins_than_those_of_the_checkpoint_are_refused(tmp_path: Path) -> None:
    train(NeaptideTrainer, tmp_path, given=ours(["ema"]), **SAVING)
    with pytest.raises(WrongCheckpointError, match="ema"):
        train(
            NeaptideTrainer,
            tmp_path,
            given=ours([]),
            resume=str(tmp_path / "checkpoint-2"),
            **SAVING,
        )


def test_only_the_model_is_saved_where_that_is_wanted(tmp_path: Path) -> None:
    train(NeaptideTrainer, tmp_path, given=ours(EXACT), save_only_model=True, **SAVING)
    assert not (tmp_path / "checkpoint-2" / "neaptide").exists()
    assert (tmp_path / "checkpoint-2" / "model.safetensors").exists()
