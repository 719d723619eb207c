"""Convert losses to backward passes: budget curves, multipliers and their intervals.

A budget is the number of backward passes of a run. A side is one of the compared configurations.
All functions are pure.
"""

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


@attrs.frozen
class Worth:
    """A multiplier: the baseline's passes for a loss, divided by a side's passes for that loss.

    The figures are the mean over seeds and its 90 % interval.
    """

    mean: float
    """The mean multiplier; nan if the mean loss is outside the baseline's curve."""
    low: float | None
    """Lower end of the interval: 0 if the curve gives no lower bound, None for a single seed, which
    has no spread."""
    high: float | None
    """Upper end of the interval: inf if the curve gives no upper bound, None for a single seed."""
    least: float
    """The smallest multiplier that the curve can measure."""
    most: float
    """The largest multiplier that the curve can measure."""
    outside: str | None
    """`below` if the multiplier is less than `least`, `above` if it is more than `most`, else
    None."""

    def times(self, factor: float) -> Worth:
        """Return this multiplier times `factor`.

        The factor converts the multiplier to another unit, such as time.
        """
        return attrs.evolve(
            self,
            mean=self.mean * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
            least=self.least * factor,
            most=self.most * factor,
        )


@attrs.frozen
class BudgetCurve:
    """The final loss as a function of the budget. A point is a whole run with its own schedule.

    Between two budgets the loss is linear in the logarithm of the budget. Because of noise,
    a longer run can have a higher loss. So neighbouring points are averaged until the losses are
    non-increasing (isotonic regression by pool-adjacent-violators, Barlow et al. 1972).
    """

    budgets: tuple[float, ...]
    """The budgets in backward passes, ascending."""
    losses: tuple[float, ...]
    """The validation loss at each budget, non-increasing."""

    def at(self, budget: float) -> float | None:
        """Return the loss after `budget` passes; None outside the range of measured budgets.

        Losses between two measured budgets are interpolated.
        """
        return _interpolated(
            math.log(budget), [math.log(known) for known in self.budgets], self.losses
        )

    def reaching(self, loss: float, near: float | None = None) -> float | None:
        """Return the number of passes that reach the loss; None if the curve has no such loss.

        If several budgets have the same loss, the result is the number of passes closest to `near`,
        or the smallest number if `near` is None.
        """
        logs = [math.log(budget) for budget in self.budgets]
        falling = [-known for known in self.losses]
        found = _interpolated(-loss, falling, logs)
        if found is None:
            return None
        slack = _slack(falling)
        flat = [
            budget
            for budget, known in zip(self.budgets, self.losses, strict=True)
            if abs(known - loss) <= slack
        ]
        if near is not None and len(flat) > 1:
            return min(max(near, flat[0]), flat[-1])
        return math.exp(found)


def curve(points: Sequence[tuple[float, float]]) -> BudgetCurve:
    """Return the curve through `(budget, loss)` points.

    The losses of points with equal budgets are averaged. ValueError if there are no points, or if a
    loss is not finite.
    """
    if not points or not all(math.isfinite(loss) for _, loss in points):
        msg = f"a budget curve needs finite losses (got {list(points)})"
        raise ValueError(msg)
    budgets = sorted({budget for budget, _ in points})
    means = [fmean(loss for at, loss in points if at == budget) for budget in budgets]
    return BudgetCurve(tuple(budgets), tuple(_non_increasing(means)))


def worth(baseline: BudgetCurve, at: float, differences: Sequence[float], budget: float) -> Worth:
    """Return a side's multiplier after `budget` passes, computed from one difference for each seed.

    A difference is the side's loss minus the loss of the baseline's run with the same seed. The
    baseline's run has `at` passes, which is a budget of the curve. The difference cancels the
    effects of a seed's data and initialisation. The mean of the differences and its Student
    interval are added to the curve's loss at `at`. So a seed whose own loss is outside the curve
    counts like every other seed.

    ValueError if there are no differences, or if `at` is outside the curve.
    """
    middle = baseline.at(at)
    if not differences or middle is None:
        msg = f"nothing to compare at {at} passes (got {list(differences)})"
        raise ValueError(msg)
    least, most = baseline.budgets[0] / budget, baseline.budgets[-1] / budget
    mean = middle + fmean(differences)

    def needed(loss: float) -> float | None:
        passes = baseline.reaching(loss, at)
        return None if passes is None else passes / budget

    found = needed(mean)
    outside = None if found is not None else "below" if mean > baseline.losses[0] else "above"
    low = high = None
    if len(differences) > 1:
        half = _t90(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
        low, high = needed(mean + half), needed(mean - half)
        if low is None:
            low = 0.0 if mean + half > baseline.losses[0] else most
        if high is None:
            high = math.inf if mean - half < baseline.losses[-1] else least
    return Worth(math.nan if found is None else found, low, high, least, most, outside)


def paired(baseline: BudgetCurve, at: float, difference: float, budget: float) -> float | None:
    """Return the multiplier of one seed; None if the seed's loss is outside the curve."""
    middle = baseline.at(at)
    passes = None if middle is None else baseline.reaching(middle + difference, at)
    return None if passes is None else passes / budget


def _t90(freedom: int) -> float:
    """Return Student's t for a two-sided 90 % interval."""
    if freedom <= len(_T90):
        return _T90[freedom - 1]
    normal = 1.6449
    return normal + (normal**3 + normal) / (
        4 * freedom
    )  # Cornish-Fisher expansion; its error is 0.0002 at 31 degrees


def _non_increasing(values: Sequence[float]) -> list[float]:
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (one, first), (other, second) = pools[-2:]
            pools[-2:] = [((one * first + other * second) / (first + second), first + second)]
    return [value for value, count in pools for _ in range(count)]


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return y at x by linear interpolation; None outside the range of the ascending `xs`.

    If several `xs` equal x, the result is the first y.
    """
    slack = _slack(xs)
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


def _slack(xs: Sequence[float]) -> float:
    """Return the tolerance for rounding errors at both ends of the ascending `xs`."""
    return 1e-12 * max(abs(xs[0]), abs(xs[-1]))
