"""What the scenarios on the device `cuda` share: a task there, and a digest of what they leave."""

from __future__ import annotations

import hashlib

import torch

from neaptide_toolkit.testing.tiny import TinyTask, tiny_task

DEVICE = torch.device("cuda")
Result = tuple[list[float], str]
"""Losses, and the digest of the tensors that a run leaves."""


def digest_of(tensors: dict[str, torch.Tensor]) -> str:
    """Return a digest of names and bits."""
    digest = hashlib.sha256()
    for name, value in tensors.items():
        digest.update(name.encode())
        digest.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def task_on_device(*, streams: bool) -> TinyTask:
    """Return the tiny task with its batches on the device; the model, too, unless it streams."""
    task = tiny_task()
    if not streams:
        task.model.to(DEVICE)
    for batch in task.batches:
        batch.update({name: value.to(DEVICE) for name, value in batch.items()})
    return task
