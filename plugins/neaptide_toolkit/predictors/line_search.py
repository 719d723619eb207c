"""A line search along a proposal, by forwards alone, from the averaged weights."""

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
_FLAT = 1e-9  # curvature of losses from 0 to 1


@attrs.define(eq=False)
class LineSearch:
    """Mean losses at `FACTORS` times a proposal, over the batches seen so far.

    Measured from the averaged weights, not from those of the moment: there the noise of the last
    updates would hide whether the slow movement is one to go on with.
    """

    sums: list[float] = attrs.field(factory=lambda: [0.0] * len(FACTORS))
    batches: int = 0

    def add(self, losses: Sequence[float]) -> None:
        """Take the losses of one batch."""
        self.sums = [total + loss for total, loss in zip(self.sums, losses, strict=True)]
        self.batches += 1

    @property
    def best(self) -> float:
        """The factor to go by; ValueError before the first batch."""
        if not self.batches:
            msg = "nothing has been measured"
            raise ValueError(msg)
        return lowest(FACTORS, [total / self.batches for total in self.sums])

    def state_dict(self) -> dict[str, Any]:
        """Return it for a checkpoint."""
        return {"sums": list(self.sums), "batches": self.batches}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.sums, self.batches = list(saved["sums"]), saved["batches"]


def along(
    store: ParameterStore, base: NamedTensor, delta: NamedTensor, probe: Callable[[], float]
) -> list[float]:
    """Return the losses of `base + factor * delta` for each of `FACTORS`.

    `base(name)` and `delta(name)` are tensors of the weight's shape, or None for a weight that
    stays as it is. The weights are put back bitwise, whatever `probe` raises.
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
    """Return the factor at the lowest point of the parabola fitted to the losses.

    By least squares, between 0 and the largest factor with a finite loss. Where the losses do not
    curve upwards, or fewer than three are finite, the factor of the least of them; 0 without any.
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
    """Return b and c of a + b * x + c * x * x, least squares by the normal equations.

    In plain floats: torch's solvers round differently from call to call, and a resumed run is to
    be the uninterrupted one to the bit.
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
