"""Lightning's Trainer with its own strategy for one device, and with NeaptideStrategy."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import torch

from neaptide_toolkit.integrations.lightning import NeaptideStrategy

from .common import LR, NORM, ROWS, Clock, Timed, model, rows


class _Module(lightning.LightningModule):  # type: ignore[misc] - it has no types here
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.net, self.clock, self.losses = model(), clock, []
        self.updates = 0

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self.net(**batch).loss
        self.losses.append(loss.item())
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        if self.trainer.global_step > self.updates:
            self.updates = self.trainer.global_step
            self.clock.ended()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=LR)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 9)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def trained(*, ours: bool, steps: int, tokens: int, pieces: int) -> Timed:
    """Train with clipping and a schedule."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data: Any = rows(steps, tokens, pieces)
    clock = Clock()
    module = _Module(clock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about workers and logging
        trainer = lightning.Trainer(
            strategy=NeaptideStrategy() if ours else "auto",
            accelerator="cpu",
            devices=1,
            accumulate_grad_batches=pieces,
            gradient_clip_val=NORM,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=ROWS))
    return clock.steps(), module.losses
