"""The trainers that `reliability.py` compares, each as its documentation shows."""

from __future__ import annotations

import hashlib
import logging
import pickle
import sys
from typing import TYPE_CHECKING, Any

import torch
from overheads.task import batches, loss_fn, net, optimizer_of

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = 3
Loss = Any


def state(model: torch.nn.Module, optimizer: Any) -> str:
    """Return a digest of the weights and of the optimizer's state."""
    trees = [model.state_dict(), optimizer.state_dict()]
    return hashlib.sha256(pickle.dumps(_plain(trees))).hexdigest()


def _plain(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return str(tree.dtype), tuple(tree.shape), tree.reshape(-1).contiguous().numpy().tobytes()
    if isinstance(tree, dict):
        return [(repr(key), _plain(value)) for key, value in tree.items()]
    return [_plain(one) for one in tree] if isinstance(tree, list | tuple) else repr(tree)


def neaptide(directory: Path, loss: Loss = loss_fn, *, load: bool = False) -> str:
    """Train and save, or load; return the digest of the state."""
    model = net()
    optimizer = optimizer_of(model)
    with HybridTrainer(model, optimizer, loss_fn=loss) as trainer:
        if load:
            trainer.load(directory / "saved")
        else:
            for batch in batches()[:STEPS]:
                trainer.step(batch)
            trainer.save(directory / "saved")
        return state(model, optimizer)


def accelerate(directory: Path, loss: Loss = loss_fn, *, load: bool = False) -> str:
    """Do the same with Accelerate: `prepare`, `save_state`, `load_state`."""
    from accelerate import Accelerator  # noqa: PLC0415 - may be missing

    model = net()
    accelerator = Accelerator(cpu=True)
    module, optimizer = accelerator.prepare(model, optimizer_of(model))
    if load:
        accelerator.load_state(str(directory / "saved"))
    else:
        for batch in batches()[:STEPS]:
            optimizer.zero_grad()
            accelerator.backward(loss(module, batch))
            optimizer.step()
        accelerator.save_state(str(directory / "saved"))
    return state(module, optimizer)


def lightning(directory: Path, loss: Loss = loss_fn, *, load: bool = False) -> str:
    """Do the same with the Lightning Trainer: `save_checkpoint`, and `fit` with `ckpt_path`."""
    import lightning as pl  # noqa: PLC0415 - may be missing

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    found: list[str] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            del index
            return loss(self.net, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self.net)

    class Looking(pl.Callback):
        def on_train_end(self, trainer: Any, module: Any) -> None:
            found.append(state(module.net, trainer.optimizers[0]))

        def on_train_start(self, trainer: Any, module: Any) -> None:
            if load:
                found.append(state(module.net, trainer.optimizers[0]))

    path = directory / "saved" / "last.ckpt"
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS + load,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Looking()],
    )
    loader = torch.utils.data.DataLoader(batches(), batch_size=None)
    trainer.fit(Module(), loader, ckpt_path=str(path) if load else None)
    if not load:
        trainer.save_checkpoint(path)
    return found[0]


def exiting() -> Loss:
    """Return the loss, which leaves the process in the third step."""
    left = iter(range(STEPS - 1))

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if next(left, None) is None:
            sys.exit(0)
        return loss_fn(model, batch)

    return loss


SUBJECTS: dict[str, tuple[str, Callable[..., str]]] = {
    "Neaptide": ("neaptide", neaptide),
    "Lightning Trainer": ("lightning", lightning),
    "Accelerate": ("accelerate", accelerate),
}
"""The trainers by name: the distribution, and the function."""
