"""transformers' Trainer, and NeaptideTrainer."""

from __future__ import annotations

import tempfile
from typing import Any

import transformers
from transformers import Trainer, TrainingArguments

from neaptide_toolkit.integrations.transformers import NeaptideTrainer

from .common import ROWS, Clock, Timed, model, rows


class _Callback(transformers.TrainerCallback):  # type: ignore[misc] - it has no types here
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._clock.ended()


def trained(*, ours: bool, steps: int, tokens: int, pieces: int) -> Timed:
    """Train with clipping and the schedule that Trainer has by default."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=1,
            log_level="error",
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=pieces,
            num_train_epochs=1,
        )
        data = rows(steps, tokens, pieces)
        chosen = NeaptideTrainer if ours else Trainer
        trainer = chosen(model(), arguments, train_dataset=data, callbacks=[_Callback(clock)])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return clock.steps(), losses
