"""Short runs on the device `cuda` that together use every wait of the device code."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scenarios_of_data as data
import scenarios_of_offload as refuge
import scenarios_of_streaming as streaming
import torch
from on_device import Result, task_on_device

from neaptide import HybridTrainer
from neaptide.run.fit import FITTING
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    from collections.abc import Callable

JUMPS = {"ema": {}, "predictor-drift": {"min_window": 8}}
STREAMING = "layer-streaming"
OFFLOAD = "optimizer-offload"
ON_DEVICE = {"optimizer_on": "device"}
LAGGED = {"update": "in_backward", "clip": "lagged"}


def through_the_trainer(plugins: dict[str, Any], *, own_loop: bool = False, **train: Any) -> Result:
    """Train the tiny task through all phases; read losses late, write and load state between.

    Copies stay from step to step, as under `fit`, unless it is the user's own loop.
    """
    torch.manual_seed(1)
    random.seed(1)  # a digest knows the state of every generator
    np.random.seed(1)  # noqa: NPY002 - as above
    config = {
        "train": {"steps": 26, "device": "cuda", **train},
        "phases": {"warmup": {"steps": 10}, "full": {"steps": 4}, "correct": {"steps": 2}},
        "plugins": plugins,
    }
    task = task_on_device(streams=STREAMING in plugins)
    batches = task.batches
    trainer = HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config)
    with trainer:
        if not own_loop:
            trainer.run.stash.set(FITTING, object())
        steps = [trainer.step(batch) for batch in batches[:20]]
        spans = [span for span in reversed(trainer.store.spans()) if span.trainable]
        for span in spans:
            with trainer.store.loan(span, "write", of="state") as held:
                held["exp_avg"].mul_(1.0)
        steps.append(trainer.step(batches[20]))
        for span in spans:
            with trainer.store.loan(span, "write") as weight:
                weight.mul_(1.0)
        steps.append(trainer.step(batches[21]))
        with trainer.store.optimizer_state() as state:
            trainer.store.load_optimizer_state_dict(state)
        evaluated = trainer.evaluate(batches[26:])
        steps += [trainer.step(batch) for batch in batches[22:26]]
        digest = trainer.digest()
    return [*(step.loss for step in steps), evaluated], digest


SCENARIOS: dict[str, Callable[[], Result]] = {
    "stored": partial(streaming.streamed, "three slots, two ahead", passes=2),
    "state, pinned": partial(refuge.state_leaves_and_returns, pin=True),
    "state": partial(refuge.state_leaves_and_returns, pin=False),
    "on the device, zeroed in place": partial(streaming.streamed, "device", set_to_none=False),
    "in backward": partial(streaming.streamed, "all in backward"),
    "poisoned": partial(streaming.streamed, "graph, device", poison=True),
    "one block trains": streaming.one_block_trains,
    "updated in place": streaming.updated_in_place,
    "from a disk": partial(streaming.from_disk, 0),
    "from RAM and a disk": partial(streaming.from_disk, 1 << 20),
    "unfrozen": streaming.unfrozen,
    "not foreseen": streaming.an_update_that_was_not_foreseen,
    "kept and let go": streaming.kept_and_let_go,
    "changed while kept": streaming.changed_while_kept,
    "used between steps": streaming.used_between_steps,
    "followed by a hook": streaming.followed_by_a_hook,
    "data, recompute": partial(data.data_used_in_steps, "recompute"),
    "data, graph": partial(data.data_used_in_steps, "graph"),
    "data, assigned": data.assigned_in_steps,
    "backward between steps": data.backward_between_steps,
    "state loaded": data.state_loaded_while_it_is_copied,
    "broken off": partial(streaming.broken_off, 0),
    "broken off, kept": partial(streaming.broken_off, 5),
    "trainer, device": partial(through_the_trainer, {STREAMING: ON_DEVICE}),
    "trainer, own loop": partial(through_the_trainer, {STREAMING: ON_DEVICE}, own_loop=True),
    "trainer, lagged": partial(through_the_trainer, {**JUMPS, STREAMING: LAGGED}, clip_norm=0.1),
    "trainer, some phases": partial(
        through_the_trainer,
        {**JUMPS, STREAMING: {"phases": ["warmup", "predict"], **ON_DEVICE}},
    ),
    "trainer, offload": partial(through_the_trainer, {**JUMPS, OFFLOAD: {"strategy": "pinned"}}),
}
"""The shorter ones first: a mutant runs them until one tells it."""
