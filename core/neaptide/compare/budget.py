"""What a loss is worth in backward passes: budget curves, multipliers and their intervals. Pure."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

# Student's t for a two-sided 90 % interval, by degrees of freedom 1 to 30.
_T90 = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
    *(1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697),
)
_T90_MANY = 1.645


@attrs.frozen
class Interval:
    """A geometric mean with its two-sided 90 % interval (Student's t over the logarithms)."""

    mean: float
    low: float | None
    """None with a single value, which tells nothing of its spread."""
    high: float | None


def interval(values: Sequence[float]) -> Interval:
    """Return the geometric mean of positive `values` and the interval it lies in.

    ValueError where there is none, or one is not positive.
    """
    if not values or min(values) <= 0.0:
        msg = f"a multiplier's interval needs positive values (got {list(values)})"
        raise ValueError(msg)
    logs = [math.log(value) for value in values]
    mean = fmean(logs)
    if len(logs) == 1:
        return Interval(math.exp(mean), None, None)
    freedom = len(logs) - 1
    t = _T90[freedom - 1] if freedom <= len(_T90) else _T90_MANY
    half = t * stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


@attrs.frozen
class Curve:
    """Final loss against budget, each point a whole run with its own schedule.

    Between two budgets the loss is taken to be linear in the logarithm of the budget. Noise can
    make a longer run look worse: the losses are made non-increasing by pooling such neighbours
    (isotonic regression by pool-adjacent-violators, Barlow et al. 1972).
    """

    budgets: tuple[float, ...]
    """Backward passes, ascending."""
    losses: tuple[float, ...]
    """Validation losses, non-increasing."""

    def at(self, budget: float) -> float | None:
        """Return the loss after `budget` passes; None outside what was measured."""
        return _interpolated(
            math.log(budget), [math.log(known) for known in self.budgets], self.losses
        )

    def reaching(self, loss: float) -> float | None:
        """Return the passes after which the loss is reached; None outside what was measured.

        Where the curve is flat, the fewest.
        """
        logs = [math.log(budget) for budget in self.budgets]
        falling = [-known for known in self.losses]
        found = _interpolated(-loss, falling, logs)
        return None if found is None else math.exp(found)


def curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Return the curve through `(budget, loss)` points, several at a budget being averaged.

    ValueError without any, or with a loss that is not finite.
    """
    if not points or not all(math.isfinite(loss) for _, loss in points):
        msg = f"a budget curve needs finite losses (got {list(points)})"
        raise ValueError(msg)
    budgets = sorted({budget for budget, _ in points})
    means = [fmean(loss for at, loss in points if at == budget) for budget in budgets]
    return Curve(tuple(budgets), tuple(_non_increasing(means)))


def multiplier(baseline: Curve, loss: float, budget: float) -> float | None:
    """Return how many times `budget` the baseline needs for `loss`; None outside its curve."""
    needed = baseline.reaching(loss)
    return None if needed is None else needed / budget


def paired(
    baseline: Curve, at: float, candidate_loss: float, baseline_loss: float, budget: float
) -> float | None:
    """Return one seed's multiplier, from its difference to the baseline's run of the same seed.

    `baseline_loss` is that run's after `at` passes. What a seed's data and initialisation do to
    both sides drops out: the difference is laid off from the mean curve's loss at `at`.
    """
    middle = baseline.at(at)
    if middle is None:
        return None
    return multiplier(baseline, middle + candidate_loss - baseline_loss, budget)


def _non_increasing(values: Sequence[float]) -> list[float]:
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (one, first), (other, second) = pools[-2:]
            pools[-2:] = [((one * first + other * second) / (first + second), first + second)]
    return [value for value, count in pools for _ in range(count)]


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return y at x over ascending `xs`, None outside of them; at equal xs the first y."""
    slack = 1e-12 * max(1.0, abs(x))
    if not xs[0] - slack <= x <= xs[-1] + slack:
        return None
    for index, high in enumerate(xs):
        if x <= high + slack:
            if index == 0 or high - xs[index - 1] <= slack:
                return ys[index]
            low = xs[index - 1]
            share = min(1.0, max(0.0, (x - low) / (high - low)))
            return ys[index - 1] + share * (ys[index] - ys[index - 1])
    return ys[-1]
