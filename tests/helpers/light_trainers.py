"""A LightningModule, a callback that hears everything, and fits with both strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import lightning
import torch
from hf_trainers import causal_lm, rows
from lightning.pytorch.callbacks import ModelCheckpoint
from support import DEVICE

from neaptide_toolkit.integrations.lightning import NeaptideStrategy

if TYPE_CHECKING:
    from pathlib import Path


EXPECTED = (
    ".*loss_type=None.*",
    ".*logging interval.*",
    "You defined a `validation_step`.*",
    "Be aware that when using `ckpt_path`.*",
    "You're resuming from a checkpoint.*",
    "Using ModelCheckpoint with manual optimization.*",
)
"""Warnings of the libraries about what these tests mean to do."""


class Module(lightning.LightningModule):  # type: ignore[misc] - without types where it is absent
    """A small Llama, optimized automatically or by hand."""

    def __init__(self, *, manual: bool = False, accumulated: int = 1) -> None:
        super().__init__()
        self.model = causal_lm()
        self.automatic_optimization = not manual
        self.accumulated = accumulated
        self.seen: list[Any] = []
        self.register_buffer("evaluated", torch.zeros(()))

    def training_step(self, batch: Any, place: int) -> Any:
        loss = self.model(**batch).loss
        self.seen.append(loss.item())
        if self.automatic_optimization:
            self.log("loss", loss)
            return loss
        self.manual_backward(loss / self.accumulated)
        if (place + 1) % self.accumulated == 0:
            optimizer, scheduler = self.optimizers(), self.lr_schedulers()
            self.clip_gradients(optimizer, 1.0, "norm")
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        return None

    def validation_step(self, batch: Any, _: int) -> None:
        loss = self.model(**batch).loss
        self.log("val", loss)
        self.seen.append(("val", loss.item()))
        self.evaluated += 1

    def test_step(self, batch: Any, place: int) -> None:
        self.validation_step(batch, place)

    def predict_step(self, batch: Any, _: int) -> Any:
        return self.model(**batch).logits

    def make_optimizer(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer()
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Heard(lightning.Callback):  # type: ignore[misc]
    """Lists each event, with what a callback can see of the step."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_") or "checkpoint" in name:
            return super().__getattribute__(name)

        def hear(trainer: Any, module: Any, *_: Any, **__: Any) -> None:
            norms = None
            if name == "on_before_optimizer_step":  # gradients, before the update
                norms = [one.grad.cpu().norm().item() for one in module.parameters()]
            self.events.append((name, trainer.global_step, norms))

        return hear


@attrs.frozen(eq=False)
class Fitted:
    """What a fit left."""

    trainer: Any
    module: Any
    events: list[tuple[Any, ...]]
    weights: dict[str, torch.Tensor]


def loader(count: int) -> Any:
    """Return a loader of `count` samples in batches of two."""
    return torch.utils.data.DataLoader(rows(count=count), batch_size=2)


def trainer(plugins: Any = None, config: Any = None, **settings: Any) -> Any:
    """Return a trainer with our strategy, or with `plugins=None` with Lightning's own."""
    return lightning.Trainer(
        strategy="auto" if plugins is None else NeaptideStrategy(config, plugins),
        accelerator="cpu" if DEVICE.type == "cpu" else "gpu",
        devices=1,
        **{
            "max_epochs": 2,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **settings,
        },
    )


def fit(
    plugins: Any = None,
    *,
    module: Any = None,
    config: Any = None,
    save: Path | None = None,
    load: Path | None = None,
    **settings: Any,
) -> Fitted:
    """Fit a module; with `save`, write `x.ckpt` into this folder after three updates."""
    lightning.seed_everything(1, verbose=False)
    heard = Heard()
    callbacks: list[Any] = [heard, *settings.pop("callbacks", ())]
    if save is not None:
        callbacks.append(ModelCheckpoint(save, "x", every_n_train_steps=3, save_top_k=-1))
        settings["enable_checkpointing"] = True
    module = (module or Module)()
    made = trainer(plugins, config, callbacks=callbacks, **settings)
    made.fit(module, loader(12), loader(4), ckpt_path=load)
    weights = {name: one.clone() for name, one in module.state_dict().items()}
    return Fitted(made, module, heard.events, weights)


def assert_same(ours: Fitted, theirs: Fitted) -> None:
    """Check that losses, events with norms, and weights are equal to the bit."""
    assert ours.module.seen == theirs.module.seen
    assert ours.events == theirs.events
    assert ours.weights.keys() == theirs.weights.keys()
    for name, weight in theirs.weights.items():
        assert torch.equal(ours.weights[name].cpu(), weight.cpu()), name
