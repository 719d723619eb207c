"""Computes the weight and the decay of AdEMAMix's slow average.

Both rise at the start of training.
"""

from __future__ import annotations

import math


def alpha_at(step: int, alpha: float, warmup_steps: int) -> float:
    """Return the weight of the slow average at update `step`, counted from 1; it rises linearly."""
    return alpha * _risen(step, warmup_steps)


def slow_decay_at(step: int, fast: float, slow: float, warmup_steps: int) -> float:
    """Return the decay of the slow average at update `step`; the decay rises from `fast` to `slow`.

    As in the paper, the half-life of the slow average, `log(1/2) / log(decay)`, rises linearly.
    """
    risen = _risen(step, warmup_steps)
    lives = (1 - risen) * _life(fast) + risen * _life(slow)
    return min(math.exp(-1 / lives), slow) if lives else 0.0


def _risen(step: int, warmup_steps: int) -> float:
    return min(1.0, step / warmup_steps) if warmup_steps else 1.0


def _life(decay: float) -> float:
    return -1 / math.log(decay) if decay else 0.0
