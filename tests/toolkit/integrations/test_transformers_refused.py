"""What a NeaptideTrainer refuses, it refuses before training, in one line with the way out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from hf_trainers import causal_lm, rows
from support import DEVICE
from transformers import TrainerCallback, TrainingArguments

from neaptide import ConfigError
from neaptide_toolkit.integrations.arguments import check_arguments
from neaptide_toolkit.integrations.transformers import NeaptideTrainer

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = {field.name for field in dataclasses.fields(TrainingArguments)}
CHECKPOINTING = "activation_checkpointing"
if CHECKPOINTING not in _NAMES:  # before transformers 5
    CHECKPOINTING = "gradient_checkpointing"


def made(folder: Path, settings: dict[str, Any], **given: Any) -> Any:
    arguments = TrainingArguments(
        str(folder), report_to=[], use_cpu=DEVICE.type == "cpu", **settings
    )
    return NeaptideTrainer(causal_lm(), arguments, train_dataset=rows(count=2), **given)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"optim": "adalomo"}, "optim"),
        ({"optim": "galore_adamw_layerwise", "optim_target_modules": ["q"]}, "optim"),
        ({CHECKPOINTING: True}, CHECKPOINTING),
        ({"bf16_full_eval": True}, "bf16_full_eval"),
    ],
)
def test_arguments_of_the_training(tmp_path: Path, settings: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, settings, neaptide_plugins=["layer-streaming"])
    assert str(caught.value).endswith(f"@ {path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deepspeed", {"zero": 3}),
        ("fsdp", "full_shard"),
        ("fp16", True),
        ("_n_gpu", 2),
        ("activation_offloading", True),
        ("torch_compile", True),
    ],
)
def test_several_devices_and_scaled_losses(tmp_path: Path, name: str, value: object) -> None:
    trainer = made(tmp_path, {})
    vars(trainer.args)[name] = value
    with pytest.raises(ConfigError) as caught:
        check_arguments(trainer.args, trainer.accelerator, ())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("plugin", "instead"),
    [
        ("lr-schedule", "lr_scheduler_type"),
        ("gradient-accumulation", "gradient_accumulation_steps"),
        ("mixed-precision", "bf16=True"),
        ("best-checkpoint", "load_best_model_at_end"),
        ("metrics", "compute_metrics"),
        ("lora", "peft"),
    ],
)
def test_plugins_for_what_trainer_does(tmp_path: Path, plugin: str, instead: str) -> None:
    config = {"run": {"dir": str(tmp_path / "run")}}
    with pytest.raises(ConfigError, match=instead) as caught:
        made(tmp_path, {}, neaptide_plugins=[plugin], neaptide_config=config)
    assert f"@ plugins.{plugin}" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"train": {"clip_norm": 1.0}}, "train.clip_norm"),
        ({"train": {"device": "cpu"}}, "train.device"),
        ({"train": {"epochs": 2}}, "train.epochs"),
        ({"optimizer": {"name": "adamw", "lr": 0.1}}, "optimizer"),
        ({"eval": {"every": 5}}, "eval"),
    ],
)
def test_settings_that_would_have_no_effect(
    tmp_path: Path, config: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, {}, neaptide_config=config)
    assert str(caught.value).endswith(f"@ {path}")


def test_updates_in_the_backward(tmp_path: Path) -> None:
    trainer = made(
        tmp_path, {}, neaptide_config={"plugins": {"layer-streaming": {"update": "in_backward"}}}
    )
    with pytest.raises(ConfigError, match="after_backward"):
        trainer.train()
    assert not hasattr(trainer, "_pieces") or trainer._pieces is None


def test_a_plugin_that_builds_an_optimizer(tmp_path: Path) -> None:
    trainer = made(tmp_path, {}, neaptide_plugins=["adam8bit"])
    with pytest.raises(ConfigError, match="Adam8bit"):
        trainer.train()


class ClipsOtherwise(TrainerCallback):  # type: ignore[misc]
    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        self.accelerator.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)


def test_a_norm_of_another_order(tmp_path: Path) -> None:
    trainer = made(tmp_path, {}, callbacks=[callback := ClipsOtherwise()])
    callback.accelerator = trainer.accelerator
    with pytest.raises(ValueError, match="norm_type must be 2"):
        trainer.train()
