"""Short runs on the device `cuda` that together use every wait of the device code."""

from __future__ import annotations

import hashlib
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from streamed_net import WAYS, trained_net

from neaptide import HybridTrainer
from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable

Result = tuple[list[float], str]


def digest_of(tensors: dict[str, torch.Tensor]) -> str:
    """Return a digest of names and bits."""
    digest = hashlib.sha256()
    for name, value in tensors.items():
        digest.update(name.encode())
        digest.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def streamed(way: str, *, poison: bool = False, **given: Any) -> Result:
    """Train the net by the mechanism alone."""
    settings = StreamingSettings(poison=poison, **WAYS[way])
    losses, weights, _ = trained_net(settings, device="cuda", foreach=False, **given)
    return losses, digest_of(weights)


def through_the_trainer(plugins: dict[str, Any], phases: dict[str, Any] | None = None) -> Result:
    """Train the tiny task through phases, with an evaluation and a state saved and loaded."""
    torch.manual_seed(1)
    random.seed(1)  # a digest knows the state of every generator
    np.random.seed(1)  # noqa: NPY002 - as above
    cycle = {"warmup": {"steps": 10}, "full": {"steps": 4}, "correct": {"steps": 2}}
    config = {
        "train": {"steps": 26, "device": "cuda"},
        "phases": phases or cycle,
        "plugins": {"ema": {}, "predictor-drift": {"min_window": 8}, **plugins},
    }
    task = tiny_task()
    if "layer-streaming" not in plugins:
        task.model.to("cuda")
    batches = [{name: value.to("cuda") for name, value in batch.items()} for batch in task.batches]
    trainer = HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config)
    with trainer:
        losses = [trainer.step(batch).loss for batch in batches[:20]]
        losses.append(trainer.evaluate(batches[26:]))
        with trainer.store.optimizer_state() as state:
            trainer.store.load_optimizer_state_dict(state)
        losses += [trainer.step(batch).loss for batch in batches[20:26]]
        digest = trainer.digest()
    return losses, digest


SCENARIOS: dict[str, Callable[[], Result]] = {
    "stored": partial(streamed, "two slots", passes=2),
    "on the device, zeroed in place": partial(streamed, "device", set_to_none=False),
    "in backward": partial(streamed, "all in backward"),
    "poisoned": partial(streamed, "three slots, two ahead", poison=True),
    "kept": partial(streamed, "kept, in backward"),
    "graph": partial(streamed, "graph, device", passes=2),
    "inputs": partial(streamed, "inputs on the host"),
    "cpu": partial(through_the_trainer, {"layer-streaming": {"optimizer_on": "cpu"}}),
    "some phases": partial(
        through_the_trainer, {"layer-streaming": {"phases": ["warmup", "predict"]}}
    ),
    "offload": partial(through_the_trainer, {"optimizer-offload": {}}),
    "offload, at once": partial(
        through_the_trainer, {"optimizer-offload": {"async_restore": False}}
    ),
    "offload, pinned": partial(through_the_trainer, {"optimizer-offload": {"strategy": "pinned"}}),
}
