"""A loop with accelerate as users write it, for comparison: what it saw, and the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from hf_trainers import causal_lm, rows
from support import DEVICE
from transformers import set_seed

from neaptide_toolkit.integrations.accelerate import neaptide_accelerator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EPOCH = 6
"""Batches of an epoch."""


def accelerator(plugins: Any, config: Any = None, **given: Any) -> Any:
    """Return ours, or with `plugins=None` accelerate's own, as in a new process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    given = {"cpu": DEVICE.type == "cpu", **given}
    return (
        Accelerator(**given) if plugins is None else neaptide_accelerator(config, plugins, **given)
    )


def loop(
    plugins: Any = None,
    *,
    config: Any = None,
    save: Path | None = None,
    load: Path | None = None,
    loss_of: Callable[[Any, Any], torch.Tensor] | None = None,
    clip: Callable[[Any, Any], Any] | None = None,
    mode: bool = True,
    **given: Any,
) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Train two epochs; return what was seen in the second one, and the weights.

    `save` saves at the end of the first epoch, `load` starts with the second one.
    """
    made = accelerator(plugins, config, **given)
    set_seed(1)
    model = causal_lm()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)
    loader = torch.utils.data.DataLoader(rows(count=2 * EPOCH), batch_size=2)
    model, optimizer, loader, scheduler = made.prepare(model, optimizer, loader, scheduler)
    seen: list[Any] = []
    if load is not None:
        made.load_state(str(load))
    for epoch in range(0 if load is None else 1, 2):
        seen.clear()
        model.train(mode)
        for batch in loader:
            with made.accumulate(model):
                loss = loss_of(model, batch) if loss_of else model(**batch).loss
                made.backward(loss)
                if made.sync_gradients:
                    norm = (clip or clipped)(made, model)
                    seen.append(None if norm is None else norm.item())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            seen.append((loss.item(), scheduler.get_last_lr()))
        model.eval()
        with torch.no_grad():
            seen.append(model(**batch).loss.item())
        if save is not None and not epoch:
            made.save_state(str(save))
    weights = {name: one.clone() for name, one in made.get_state_dict(model).items()}
    made.end_training()
    return seen, weights


def clipped(made: Any, model: Any) -> Any:
    """Clip the norm of all gradients."""
    return made.clip_grad_norm_(model.parameters(), 1.0)


def assert_alike(ours: Any, theirs: Any) -> None:
    """Check that what two loops saw, and their weights, are equal to the bit."""
    assert ours[0] == theirs[0]
    assert ours[1].keys() == theirs[1].keys()
    for name, weight in theirs[1].items():
        assert torch.equal(ours[1][name].cpu(), weight.cpu()), name


def batch(count: int = 2) -> dict[str, Any]:
    """Return one batch on the device of the tests."""
    data = torch.utils.data.default_collate(rows(count=count))
    return {name: one.to(DEVICE) for name, one in data.items()}


def prepared(plugins: Any = (), config: Any = None) -> tuple[Any, Any, Any]:
    """Return an accelerator, and a model and an optimizer that it has prepared."""
    made = accelerator(plugins, config)
    model = causal_lm()
    return made, *made.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
