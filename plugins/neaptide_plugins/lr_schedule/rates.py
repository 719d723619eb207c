"""Rates by the number of updates, for each group of an optimizer: of a curve, or of torch."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.optim.lr_scheduler import LRScheduler

Settings = Mapping[str, Any]
"""Settings of a group by name: `lr`, and in a cycle of torch also `momentum` or `betas`."""


def peak_rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return each group's `initial_lr`, or its present rate if it has none."""
    return [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]


def keep_peak_rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the peak rates, and set them as `initial_lr`, which checkpoints save with the group.

    The schedulers of torch do the same.
    """
    for group, peak in zip(optimizer.param_groups, peak_rates(optimizer), strict=True):
        group.setdefault("initial_lr", _own(peak))
    return peak_rates(optimizer)


def _own(rate: Any) -> Any:
    """Return a rate that nobody else changes: schedulers of torch fill tensors in place."""
    return rate.clone() if isinstance(rate, torch.Tensor) else rate


def write(optimizer: torch.optim.Optimizer, settings: Sequence[Settings]) -> None:
    """Write settings into the groups; a tensor stays the same object."""
    for group, wanted in zip(optimizer.param_groups, settings, strict=True):
        for name, value in wanted.items():
            if not isinstance(group[name], torch.Tensor):
                group[name] = value
            elif isinstance(value, torch.Tensor):
                group[name].copy_(value)
            else:
                group[name].fill_(value)


class CurveRates:
    """Multiplies the peak rate of each group by a factor, as torch's LambdaLR does."""

    def __init__(self, factor: Callable[[int], float], peaks: Sequence[Any]) -> None:
        self._factor = factor
        self._peaks = peaks

    def after(self, updates: int) -> list[Settings]:
        """Return the settings of the update that follows `updates` updates."""
        factor = self._factor(updates)
        return [{"lr": peak * factor} for peak in self._peaks]


class Carrier(torch.optim.Optimizer):
    """Has the settings of another optimizer's groups, at their peak rates, and no weights.

    A scheduler of torch wraps the `step` of its optimizer and reads the groups as it left them.
    With a carrier it does neither to the optimizer of the run.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, peaks: Sequence[Any]) -> None:
        left_out = {"params", "param_names", "lr", "initial_lr"}
        groups = [
            {name: value for name, value in group.items() if name not in left_out}
            | {"params": [torch.zeros(0)], "lr": _own(peak)}
            for group, peak in zip(optimizer.param_groups, peaks, strict=True)
        ]
        super().__init__(groups, {"lr": 0.0, **optimizer.defaults})
        self._opt_called = True  # else a scheduler warns that the optimizer has made no step


class TorchRates:
    """Steps a scheduler of torch, once for each update.

    To go back, or to go on after a resume, it makes a new scheduler and all its steps. So what it
    returns depends on the number of updates only, and no state of a scheduler is saved. After
    `last` updates the settings stay: torch has schedulers that go on below zero.
    """

    def __init__(
        self,
        make: Callable[[torch.optim.Optimizer], LRScheduler],
        optimizer: torch.optim.Optimizer,
        peaks: Sequence[Any],
        last: int,
    ) -> None:
        self.last = last
        self._make: Callable[[], Any] = lambda: make(Carrier(optimizer, peaks))
        self._scheduler: Any = self._make()
        self._made = 0

    @property
    def length(self) -> int | None:
        """The number of updates after which the scheduler raises an error; None without a limit."""
        return getattr(self._scheduler, "total_steps", None)

    def after(self, updates: int) -> list[Settings]:
        """Return the settings of the update that follows `updates` updates."""
        updates = min(updates, self.last)
        if updates < self._made:
            self._scheduler, self._made = self._make(), 0
        for _ in range(updates - self._made):
            self._scheduler.step()
        self._made = updates
        cycles = getattr(self._scheduler, "cycle_momentum", False)
        names = ["lr", *(("momentum", "betas") if cycles else ())]
        return [
            {name: group[name] for name in names if name in group}
            for group in self._scheduler.optimizer.param_groups
        ]


class Factors:
    """The first group's rate by updates, relative to `peak`. Each factor is computed once."""

    def __init__(self, rates: TorchRates, peak: float) -> None:
        self._rates = rates
        self._peak = peak or 1.0
        self._known = array("d")

    def after(self, updates: int) -> float:
        """Return the factor of the update that follows `updates` updates."""
        updates = min(updates, self._rates.last)
        while len(self._known) <= updates:
            (first, *_) = self._rates.after(len(self._known))
            self._known.append(first["lr"] / self._peak)
        return self._known[updates]
