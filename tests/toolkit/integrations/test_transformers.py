"""A NeaptideTrainer with exact plugins trains as transformers' own Trainer does, to the bit."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hf_trainers import MODELS, assert_same, causal_lm, rows, train
from support import DEVICE
from transformers import (
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from neaptide_toolkit.integrations.transformers import NeaptideMixin, NeaptideTrainer
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*loss_type=None.*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
    pytest.mark.filterwarnings("ignore:.*mtime may not be reliable.*"),  # transformers 4
    pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast.*"),  # transformers 4
]
PLUGINS: dict[str, list[Any]] = {
    "none": [],
    "checkpointing": ["activation-checkpointing"],
    "streaming": ["layer-streaming"],
    "offload": ["optimizer-offload"],
    "all": ["layer-streaming", "optimizer-offload", "divergence-monitor", "profiler"],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "accumulated": {"gradient_accumulation_steps": 4},
    "bf16": {"bf16": True},
    "bf16, accumulated": {"bf16": True, "gradient_accumulation_steps": 4},
    "not clipped": {"max_grad_norm": 0.0},
    "smoothed": {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 4},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True},
    "another optimizer": {"optim": "sgd", "lr_scheduler_type": "cosine", "warmup_steps": 2},
    "not averaged": {"average_tokens_across_devices": False, "gradient_accumulation_steps": 4},
}


def pair(folder: Path, plugins: list[Any], kind: str = "causal LM", **more: Any) -> tuple[Any, Any]:
    """Train with both trainers; return ours, then theirs."""
    given = more.pop("given", {})
    theirs = train(Trainer, folder / "theirs", kind, given=given, **more)
    ours = {**given, "neaptide_plugins": plugins}
    return train(NeaptideTrainer, folder / "ours", kind, given=ours, **more), theirs


@pytest.mark.parametrize(
    "setting", ["accumulated", "bf16, accumulated", "not clipped", "smoothed", "evaluated"]
)
def test_a_causal_lm_is_trained_alike(tmp_path: Path, setting: str) -> None:
    ours, theirs = pair(tmp_path, PLUGINS["all"], **SETTINGS[setting])
    assert_same(ours, theirs)
    assert len(theirs.logs) > 2


@pytest.mark.parametrize("plugins", ["none", "checkpointing"])
def test_each_plugin_alone_leaves_every_bit(tmp_path: Path, plugins: str) -> None:
    setting = SETTINGS["accumulated"] if plugins == "none" else {}
    assert_same(*pair(tmp_path, PLUGINS[plugins], **setting))


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "causal LM"])
def test_other_models_are_trained_alike(tmp_path: Path, kind: str) -> None:
    assert_same(*pair(tmp_path, PLUGINS["streaming"], kind, **SETTINGS["bf16, accumulated"]))


def test_texts_that_are_generated_in_an_evaluation_are_the_same(tmp_path: Path) -> None:
    class Writes(NeaptideMixin, Seq2SeqTrainer):  # type: ignore[misc]
        """As a user writes it."""

    def metrics(found: Any) -> dict[str, Any]:
        return {"written": found.predictions.tolist()}

    more: dict[str, Any] = {
        "arguments_of": Seq2SeqTrainingArguments,
        "predict_with_generate": True,
        "generation_max_length": 6,
        "eval_strategy": "steps",
        "eval_steps": 3,
    }
    given = {"compute_metrics": metrics}
    theirs = train(Seq2SeqTrainer, tmp_path / "theirs", "seq2seq", given=given, **more)
    given["neaptide_plugins"] = PLUGINS["streaming"]
    assert_same(train(Writes, tmp_path / "ours", "seq2seq", given=given, **more), theirs)
    assert any("eval_written" in line for line in theirs.logs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "plugins", "setting"), list(itertools.product(MODELS, PLUGINS, SETTINGS))
)
def test_all_of_them_together(tmp_path: Path, kind: str, plugins: str, setting: str) -> None:
    assert_same(*pair(tmp_path, PLUGINS[plugins], kind, **SETTINGS[setting]))


class Stops(TrainerCallback):  # type: ignore[misc] - transformers has no types here
    """Ends the training in the middle of an accumulation, then in the middle of an epoch."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.stopped = False

    def on_substep_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1 and not self.stopped:
            self.stopped = control.should_epoch_stop = True

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == 4


def test_a_callback_that_stops_stops_at_the_same_bit(tmp_path: Path) -> None:
    more = {"num_train_epochs": 4, "gradient_accumulation_steps": 2}
    ours, theirs = pair(tmp_path, ["layer-streaming"], callbacks=(Stops(),), **more)
    assert_same(ours, theirs)
    assert theirs.trainer.state.global_step == 4


def test_an_optimizer_and_a_schedule_of_the_user(tmp_path: Path) -> None:
    def trained(cls: Any, folder: Path, given: dict[str, Any]) -> Any:
        class Mine(cls):  # type: ignore[misc, valid-type]
            def create_optimizer(self, *_: Any) -> Any:
                self.optimizer = torch.optim.RAdam(self.model.parameters(), lr=0.1)
                return self.optimizer

            def create_scheduler(self, *_: Any, **__: Any) -> Any:
                self.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
                return self.lr_scheduler

        return train(Mine, folder, given=given)

    theirs = trained(Trainer, tmp_path / "theirs", {})
    ours = trained(NeaptideTrainer, tmp_path / "ours", {"neaptide_plugins": ["layer-streaming"]})
    assert_same(ours, theirs)


def test_the_best_model_is_loaded_at_the_end(tmp_path: Path) -> None:
    more = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    more |= {"load_best_model_at_end": True, "save_total_limit": 1, "learning_rate": 0.5}
    stop = EarlyStoppingCallback(early_stopping_patience=2)
    ours, theirs = pair(tmp_path, PLUGINS["all"], callbacks=(stop,), **more)
    assert_same(ours, theirs)
    assert ours.trainer.state.best_global_step < ours.trainer.state.global_step
    after = [one.trainer.evaluate()["eval_loss"] for one in (ours, theirs)]
    assert after[0] == after[1] == theirs.trainer.state.best_metric


def test_evaluations_outside_of_a_training_stream_too(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "run")}}
    given = {"neaptide_config": config, "neaptide_plugins": ["ema", "layer-streaming"]}
    ours = train(NeaptideTrainer, tmp_path, given=given)
    theirs = train(Trainer, tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.*")}
    found = [
        (one.trainer.evaluate()["eval_loss"], one.trainer.predict(rows(count=3)).predictions)
        for one in (ours, theirs)
    ]
    assert found[0][0] == found[1][0]
    assert (found[0][1] == found[1][1]).all()
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.*")} == before


def test_a_second_training_goes_on_alike(tmp_path: Path) -> None:
    ours, theirs = pair(tmp_path, PLUGINS["all"])
    for done in (ours, theirs):
        set_seed(2)
        done.trainer.train()
    mine, other = ours.trainer.model.state_dict(), theirs.trainer.model.state_dict()
    assert all(torch.equal(mine[name].cpu(), other[name].cpu()) for name in other)
    assert not torch.equal(other["lm_head.weight"].cpu(), theirs.weights["lm_head.weight"].cpu())


def test_jumps_are_made_and_judged_without_dropout(tmp_path: Path) -> None:
    phases = {"warmup": {"steps": 1}, "full": {"steps": 1}, "correct": {"steps": 1}}
    config = {"phases": phases, "run": {"dir": str(tmp_path / "run")}}
    given = {"neaptide_config": config, "neaptide_plugins": [STEADY_PREDICTOR]}
    more = {"gradient_accumulation_steps": 2, "num_train_epochs": 3}
    probes = []

    class Watched(NeaptideTrainer):
        def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(model, *args, **kwargs)
            if not torch.is_grad_enabled():
                probes.append(model.training)
            return loss

    ours = train(Watched, tmp_path / "ours", given=given, **more)
    assert set(probes) == {False}
    rows_written = (tmp_path / "run" / "steps.csv").read_text("utf-8").splitlines()[1:]
    jumps = [row for row in rows_written if ",true," in row.lower()]
    assert len(rows_written) - len(jumps) == ours.trainer.state.global_step == 9
    assert jumps
    assert ours.trainer.model.training


def test_a_step_is_recorded_with_the_loss_and_the_norm_that_trainer_logs(tmp_path: Path) -> None:
    import csv

    given = {"neaptide_config": {"run": {"dir": str(tmp_path / "run")}}}
    ours = train(
        NeaptideTrainer, tmp_path, given=given, gradient_accumulation_steps=2, max_grad_norm=0.01
    )
    with (tmp_path / "run" / "steps.csv").open() as file:
        written = list(csv.DictReader(file))
    logged = [line for line in ours.logs if "loss" in line]
    assert [float(row["loss"]) for row in written] == pytest.approx(
        [line["loss"] for line in logged], abs=1e-4
    )
    assert [float(row["grad_norm"]) for row in written] == pytest.approx(
        [line["grad_norm"] for line in logged], rel=1e-6
    )


def test_an_update_that_is_not_finite_is_skipped_and_leaves_the_schedule(tmp_path: Path) -> None:
    class Broken(NeaptideTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            return loss * float("nan") if self.state.global_step == 1 else loss

    ours = train(Broken, tmp_path)
    assert all(torch.isfinite(one).all() for one in ours.weights.values())
    rates = [line["learning_rate"] for line in ours.logs if "learning_rate" in line]
    assert rates[1] == rates[2]
    assert rates[2] > rates[3]


def test_after_an_error_the_model_is_whole_again(tmp_path: Path) -> None:
    class Broken(NeaptideTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 1:
                msg = "out of ideas"
                raise RuntimeError(msg)
            return super().compute_loss(*args, **kwargs)

    here = DEVICE.type == "cpu"
    arguments = TrainingArguments(str(tmp_path), use_cpu=here, report_to=[], disable_tqdm=True)
    trainer = Broken(
        causal_lm(), arguments, train_dataset=rows(count=20), neaptide_plugins=["layer-streaming"]
    )
    with pytest.raises(RuntimeError, match="out of ideas"):
        trainer.train()
    batch = {name: one[None] for name, one in rows(count=1)[0].items()}
    assert torch.isfinite(trainer.model.cpu()(**batch).loss)
