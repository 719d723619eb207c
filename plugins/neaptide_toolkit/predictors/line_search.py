"""A line search along a proposed change of the weights. It needs forward passes only.

The search starts at the averaged weights.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neaptide.api.parameters import ParameterStore

    NamedTensor = Callable[[str], torch.Tensor | None]

FACTORS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Multiples of a proposal at which the loss is measured."""
_FLAT = 1e-9  # a parabola of losses scaled to [0, 1] is convex above this curvature


@attrs.define(eq=False)
class LineSearch:
    """Mean losses at `FACTORS` times a proposal, over the batches measured so far.

    The search starts at the averaged weights. At the current weights, the noise of the last updates
    would hide whether the proposal lowers the loss.
    """

    sums: list[float] = attrs.field(factory=lambda: [0.0] * len(FACTORS))
    batches: int = 0

    def add(self, losses: Sequence[float]) -> None:
        """Add the losses of one batch."""
        self.sums = [total + loss for total, loss in zip(self.sums, losses, strict=True)]
        self.batches += 1

    @property
    def best(self) -> float:
        """The best factor; ValueError before the first batch."""
        if not self.batches:
            msg = "nothing has been measured"
            raise ValueError(msg)
        return lowest(FACTORS, [total / self.batches for total in self.sums])

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"sums": list(self.sums), "batches": self.batches}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.sums, self.batches = list(saved["sums"]), saved["batches"]


def along(
    store: ParameterStore, base: NamedTensor, delta: NamedTensor, probe: Callable[[], float]
) -> list[float]:
    """Return the losses of `base + factor * delta` for each of `FACTORS`.

    `base(name)` and `delta(name)` are tensors of the weight's shape. If `base(name)` is None, the
    weight is not changed. If `delta(name)` is None, it counts as zeros. `probe` computes the loss.
    Afterwards the weights are restored bitwise, even if `probe` raises an error.
    """
    weights = store.snapshot()
    losses = []
    try:
        for factor in FACTORS:
            _place(store, base, delta, factor)
            losses.append(probe())
    finally:
        store.restore(weights)
    return losses


def _place(store: ParameterStore, base: NamedTensor, delta: NamedTensor, factor: float) -> None:
    for span in store.spans():
        middle = base(span.name) if span.trainable else None
        if middle is None:
            continue
        step = delta(span.name)
        place = middle if step is None or not factor else torch.add(middle, step, alpha=factor)
        with store.loan(span, "write") as weight, torch.no_grad():
            weight.copy_(place)


def lowest(factors: Sequence[float], losses: Sequence[float]) -> float:
    """Return the factor at the minimum of a parabola fitted to the losses by least squares.

    The result is between 0 and the largest factor with a finite loss. If the parabola is not
    convex, or if fewer than three losses are finite, the result is the factor of the lowest finite
    loss. If no loss is finite, the result is 0.
    """
    finite = [
        (factor, loss) for factor, loss in zip(factors, losses, strict=True) if math.isfinite(loss)
    ]
    if not finite:
        return 0.0
    least = min(finite, key=lambda pair: pair[1])[0]
    if len(finite) < 3:  # noqa: PLR2004 - points of a parabola
        return least
    highest = max(loss for _, loss in finite)
    lowest_loss = min(loss for _, loss in finite)
    spread = highest - lowest_loss
    if not 0.0 < spread < math.inf:
        return least
    slope, curvature = _parabola([(x, (loss - lowest_loss) / spread) for x, loss in finite])
    if curvature <= _FLAT:
        return least
    return min(max(-slope / (2.0 * curvature), 0.0), max(x for x, _ in finite))


def _parabola(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return b and c of a + b * x + c * x * x, by the normal equations of least squares.

    The computation uses Python floats, because torch's solvers may round differently in each call.
    A resumed run must be bitwise equal to an uninterrupted run.
    """
    middle = sum(x for x, _ in points) / len(points)
    height = sum(y for _, y in points) / len(points)
    squares = sum((x - middle) ** 2 for x, _ in points) / len(points)
    rows = [(x - middle, (x - middle) ** 2 - squares, y - height) for x, y in points]
    uu, uv, vv, uy, vy = (
        sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2))
    )
    determinant = uu * vv - uv * uv
    curvature = (uu * vy - uv * uy) / determinant
    slope = (vv * uy - uv * vy) / determinant
    return slope - 2.0 * curvature * middle, curvature
