"""A loop with accelerate's Accelerator, and with `neaptide_accelerator`."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator

from neaptide_toolkit.integrations.accelerate import neaptide_accelerator

from .common import LR, NORM, ROWS, Clock, Timed, model, rows


def trained(*, ours: bool, steps: int, tokens: int, pieces: int) -> Timed:
    """Train with clipping and a schedule."""
    options: dict[str, Any] = {"cpu": True, "gradient_accumulation_steps": pieces}
    accelerator: Any = neaptide_accelerator(**options) if ours else Accelerator(**options)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    data: Any = rows(steps, tokens, pieces)
    loader = torch.utils.data.DataLoader(data, batch_size=ROWS)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    clock, losses = Clock(), []
    for batch in loader:
        with accelerator.accumulate(net):
            loss = net(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if accelerator.sync_gradients:
            clock.ended()
    accelerator.end_training()
    return clock.steps(), losses
