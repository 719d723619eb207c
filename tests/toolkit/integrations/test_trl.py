"""TRL's SFTTrainer with Neaptide's mixin trains as SFTTrainer alone does, to the bit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from chats_and_texts import chats, save_model, save_tokenizer, sentence
from datasets import Dataset
from hf_trainers import Done, Heard, assert_same, logs_of
from support import DEVICE
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

from neaptide import ConfigError
from neaptide_toolkit.integrations.transformers import NeaptideMixin
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

    import torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
    pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast.*"),  # transformers 4
]
EXACT = ["layer-streaming", "optimizer-offload"]


class Streamed(NeaptideMixin, SFTTrainer):  # type: ignore[misc] - trl is not checked
    """As a user writes it."""


def tuned(cls: Any, folder: Path, data: Any, given: dict[str, Any], **settings: Any) -> Done:
    """Fine-tune a small Llama; `given` are more arguments of the trainer."""
    set_seed(1)
    heard = Heard()
    arguments = SFTConfig(
        str(folder / "out"),
        use_cpu=DEVICE.type == "cpu",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="no",
        per_device_train_batch_size=2,
        eval_strategy="steps",
        eval_steps=2,
        **{"bf16": False, "num_train_epochs": 1, "gradient_checkpointing": False, **settings},
    )
    model = save_model(folder / "model", attention_dropout=0.1)
    trainer = cls(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=data.select(range(3)),
        processing_class=save_tokenizer(folder / "tokenizer"),
        callbacks=[heard],
        **given,
    )
    trainer.train()
    weights = {name: one.clone() for name, one in trainer.model.state_dict().items()}
    return Done(trainer, logs_of(trainer), heard.events, weights)


def texts() -> Any:
    drawn = random.Random(0)
    return Dataset.from_list([{"text": sentence(drawn, 30)} for _ in range(9)])


def conversations() -> Any:
    return Dataset.from_list([{"messages": one} for one in chats(9)])


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (texts, {"gradient_accumulation_steps": 4, "num_train_epochs": 2}),
        # The simulated GPU lacks the product of bfloat16 with a float32 result of TRL's head.
        (conversations, {"bf16": DEVICE.type == "cpu", "gradient_checkpointing": True}),
        (texts, {"packing": True, "max_length": 32, "gradient_accumulation_steps": 2}),
    ],
)
def test_it_tunes_alike(tmp_path: Path, data: Any, settings: dict[str, Any]) -> None:
    theirs = tuned(SFTTrainer, tmp_path / "theirs", data(), {}, **settings)
    plugins = ["optimizer-offload"] if "gradient_checkpointing" in settings else EXACT
    ours = tuned(Streamed, tmp_path / "ours", data(), {"neaptide_plugins": plugins}, **settings)
    assert_same(ours, theirs)
    assert any("eval_mean_token_accuracy" in line for line in theirs.logs)


def test_jumps_do_not_count_in_the_metrics_of_an_evaluation(tmp_path: Path) -> None:
    phases = {"warmup": {"steps": 1}, "full": {"steps": 1}, "correct": {"steps": 1}}
    given = {"neaptide_plugins": [STEADY_PREDICTOR], "neaptide_config": {"phases": phases}}
    counted = []

    class Watched(Streamed):
        def _probed(self, *args: Any) -> torch.Tensor:
            before = {name: list(values) for name, values in self._metrics["eval"].items()}
            loss = super()._probed(*args)
            counted.append({**self._metrics["eval"]} == before)
            return loss

    tuned(Watched, tmp_path, texts(), given)
    assert counted
    assert all(counted)


def test_checkpointing_of_both_is_refused(tmp_path: Path) -> None:
    arguments = SFTConfig(str(tmp_path), bf16=False, report_to=[], use_cpu=DEVICE.type == "cpu")
    with pytest.raises(ConfigError, match=r"@ (activation|gradient)_checkpointing"):
        Streamed(
            save_model(tmp_path / "model"),
            arguments,
            train_dataset=texts(),
            processing_class=save_tokenizer(tmp_path / "tokenizer"),
            neaptide_plugins=EXACT,
        )
