"""Sums of metrics over the batches of an evaluation."""

from __future__ import annotations

import math
from typing import Any

import torch

from neaptide import DataError
from neaptide.devices import widest

_PAIR = 2


class Sums:
    """Adds up values and weights by name, on the device, so that no batch waits for it."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Any, Any]] = {}

    def add(self, name: str, total: Any, weight: Any) -> None:
        """Add a sum of values, and how many they are."""
        before = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = before[0] + _wide(total), before[1] + _wide(weight)

    def means(self) -> dict[str, float]:
        """Return each sum divided by its weight; nan if the weight is zero."""
        pairs = {
            name: (float(total), float(weight)) for name, (total, weight) in self._sums.items()
        }
        return {name: total / n if n else math.nan for name, (total, n) in pairs.items()}


def weighed(returned: Any, samples: int, name: str) -> tuple[Any, Any]:
    """Return the sum and the weight of what a function returned: a mean, or both as a pair."""
    pair = isinstance(returned, tuple) and len(returned) == _PAIR
    if not all(map(_is_number, returned if pair else (returned,))):
        what = f"{type(returned).__name__} {returned!r:.60}"
        msg = (
            f"the metric {name!r} must return a number, or a sum and a weight (got {what}) "
            f"@ plugins.metrics.compute"
        )
        raise DataError(msg)
    return (returned[0], returned[1]) if pair else (returned * samples, samples)


def perplexity(loss: float) -> float:
    """Return exp(loss), or infinity if no float holds it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _is_number(value: Any) -> bool:
    one = isinstance(value, torch.Tensor) and value.numel() == 1
    return one or isinstance(value, int | float)


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().reshape(()).to(widest(value.device))
