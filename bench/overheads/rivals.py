"""Runs other trainers on the task of `overhead.py`, each as its documentation shows.

Each function returns a subject, which is a function that makes a given number of steps and returns
the seconds. The trainers' logging, progress bars and saving are switched off. If a trainer has its
own loop, the time is measured from the end of one step to the end of a later step. So the start and
the end of the loop are excluded.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

from overheads.task import batches, looped, loss_fn, net, optimizer_of

if TYPE_CHECKING:
    from collections.abc import Callable

SETTLING = 5
"""Number of steps of a trainer's own loop before the clock starts."""


def fabric() -> Callable[[int], float]:
    """Lightning Fabric: `setup`, `backward`."""
    from lightning.fabric import Fabric  # noqa: PLC0415 - may be missing

    model = net()
    runner = Fabric(accelerator="cpu", devices=1)
    module, optimizer = runner.setup(model, optimizer_of(model))

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        runner.backward(loss_fn(module, batch))
        optimizer.step()

    return looped(step)


def accelerate() -> Callable[[int], float]:
    """Accelerate: `prepare`, `backward`."""
    from accelerate import Accelerator  # noqa: PLC0415 - may be missing

    model = net()
    accelerator = Accelerator(cpu=True)
    module, optimizer = accelerator.prepare(model, optimizer_of(model))

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(module, batch))
        optimizer.step()

    return looped(step)


class Clock:
    """Measures the time of all steps after the first few steps."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def tick(self) -> None:
        """Record the end of a step."""
        self._ends.append(time.perf_counter())

    def seconds(self, steps: int) -> float:
        """Return the time of `steps` steps, and reset the clock."""
        taken = self._ends[SETTLING + steps - 1] - self._ends[SETTLING - 1]
        self._ends.clear()
        return taken


def lightning() -> Callable[[int], float]:
    """Return a subject that uses the Lightning Trainer with automatic optimization."""
    import lightning as pl  # noqa: PLC0415 - may be missing

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    clock = Clock()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            del index
            return loss_fn(self.net, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self.net)

    class Ticking(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            clock.tick()

    def run(steps: int) -> float:
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=SETTLING + steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Ticking()],
        )
        data = batches()
        ready = [data[index % len(data)] for index in range(SETTLING + steps)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(Module(), torch.utils.data.DataLoader(ready, batch_size=None))
        return clock.seconds(steps)

    return run


def transformers() -> Callable[[int], float]:
    """Return a subject that uses the transformers Trainer.

    The Trainer always collates items into batches, so each item is a complete batch here.
    """
    import transformers as hf  # noqa: PLC0415 - may be missing

    clock = Clock()

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
            return {"loss": loss_fn(self.net, (features, labels))}

    class Ticking(hf.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

    def run(steps: int) -> float:
        data = batches()
        with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = Wrapped()
            trainer = hf.Trainer(
                model=model,
                args=hf.TrainingArguments(
                    output_dir=directory,
                    max_steps=SETTLING + steps,
                    per_device_train_batch_size=1,
                    use_cpu=True,
                    report_to=[],
                    save_strategy="no",
                    logging_strategy="no",
                    disable_tqdm=True,
                ),
                # One item is one complete batch, because collation is not the trainer's overhead.
                train_dataset=[data[index % len(data)] for index in range(SETTLING + steps)],
                data_collator=lambda items: {"features": items[0][0], "labels": items[0][1]},
                optimizers=(optimizer_of(model), None),
                callbacks=[Ticking()],
            )
            trainer.remove_callback(hf.trainer_callback.PrinterCallback)
            trainer.train()
        return clock.seconds(steps)

    return run


RIVALS: dict[str, tuple[tuple[str, ...], Callable[[], Callable[[int], float]]]] = {
    "Lightning Fabric": (("lightning",), fabric),
    "Accelerate": (("accelerate",), accelerate),
    "Lightning Trainer": (("lightning",), lightning),
    "transformers Trainer": (("transformers", "accelerate"), transformers),
}
"""The other trainers by name: the modules that they need, and the function that makes a subject."""
