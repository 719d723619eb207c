"""Continues a text byte by byte."""

from __future__ import annotations

from typing import Any

import torch


def continued(model: Any, prompt: str, count: int, temperature: float) -> str:
    """Return the prompt and `count` bytes more. A byte that is no UTF-8 becomes a mark.

    Args:
        model: maps bytes, int64 `[1, T]`, to logits `[1, T, 256]`; it sees `model.context` bytes.
        prompt: at least one character.
        count: number of new bytes.
        temperature: divides the logits; 0 takes the most probable byte.
    """
    found = [*prompt.encode()]
    device = next(model.parameters()).device
    with torch.inference_mode():
        for _ in range(count):
            seen = torch.tensor([found[-model.context :]], device=device)
            found.append(_chosen(model(seen)[0, -1], temperature))
    return bytes(found).decode(errors="replace")


def _chosen(logits: torch.Tensor, temperature: float) -> int:
    logits = logits.to("cpu", torch.float64)
    if not temperature:
        return int(logits.argmax())
    shares = torch.softmax((logits - logits.max()) / temperature, dim=-1)
    return int(torch.multinomial(shares, 1))
