"""The values of a step: losses, outcomes, jumps (predicted updates), results."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

import attrs
import torch
from attrs.validators import ge as _ge
from attrs.validators import gt as _gt
from attrs.validators import lt as _lt

from neaptide.tensors import batch_length
from neaptide.text import brief, one_line

from .stash import StashKey

if TYPE_CHECKING:
    from .memory import MemorySample
    from .phases import Phase
    from .spans import DeltaOf


@attrs.frozen(eq=False)
class Loss:
    """A sum of losses and a count, so that the mean over unequal micro-batches is exact.

    `count` is the number of tokens or targets in `sum`: a number or a 0-dim tensor. `loss_fn` may
    instead return a mean as a 0-dim tensor. Then the count is the number of samples in the batch.
    """

    sum: torch.Tensor
    count: float | torch.Tensor
    per_token: bool = False
    """True if `sum` is the cross-entropy of `count` tokens in nats; reports show perplexities."""
    __repr__ = one_line


@attrs.frozen(eq=False)
class WeighedLoss:
    """The sum or mean that `loss_fn` returned, and the weight of this loss."""

    value: torch.Tensor
    count: float | torch.Tensor
    is_sum: bool
    is_counted: bool = True
    """False if `count` is the number of samples, because `loss_fn` gave no count of targets."""
    per_token: bool = False
    __repr__ = one_line

    def over(self, reference: float | torch.Tensor) -> torch.Tensor:
        """Return the loss sum / `reference`; a mean of `reference` values keeps its bits."""
        if self.is_sum:
            return self.value / nonzero(reference)
        if not isinstance(self.count, torch.Tensor):
            share = self.count / nonzero(reference)
            return self.value if share == 1.0 else self.value * share
        alone = self.count is reference
        scaled = self.value if alone else self.value * (self.count / nonzero(reference))
        return scaled.masked_fill(self.count == 0, 0.0)

    @property
    def mean(self) -> torch.Tensor:
        """The mean loss, 0-dim; zero if the count is zero."""
        return self.over(self.count)


def nonzero(count: float | torch.Tensor) -> float | torch.Tensor:
    """Return `count`, or 1 if `count` is zero, without waiting for a device."""
    if isinstance(count, torch.Tensor):
        return torch.where(count == 0, torch.ones_like(count), count)
    return count or 1.0


def weigh(returned: object, batch: object) -> WeighedLoss:
    """Return a value of `loss_fn` with its weight; TypeError if the value is not a loss."""
    if isinstance(returned, WeighedLoss):
        return returned
    if isinstance(returned, Loss):
        return WeighedLoss(returned.sum, returned.count, is_sum=True)
    if isinstance(returned, torch.Tensor) and returned.numel() == 1:
        mean = returned.reshape(()) if returned.ndim else returned
        return WeighedLoss(mean, batch_length(batch), is_sum=False, is_counted=False)
    what = type(returned).__name__
    if isinstance(returned, torch.Tensor):
        what = f"a tensor of shape {tuple(returned.shape)}"
    msg = f"loss_fn must return a scalar tensor or neaptide.Loss(sum, count) (got {what})"
    raise TypeError(msg)


class Outcome(Enum):
    """The result of one optimizer step."""

    APPLIED = "applied"
    """The weights changed."""
    SKIPPED = "skipped"
    """The loss or a gradient was not finite. No weight changed. The gradients were dropped."""
    DEFERRED = "deferred"
    """No weight changed. The gradients stay, and the next step adds to them."""


@attrs.frozen(eq=False)
class Trained:
    """The result of one ordinary step. The tensors are still on the device."""

    loss: torch.Tensor
    """Mean loss of the batch: a detached 0-dim tensor."""
    gradient_norm: torch.Tensor | None
    """L2 norm of the gradients before clipping; None if this norm was not measured."""
    outcome: Outcome
    __repr__ = one_line


@attrs.frozen(eq=False)
class Update:
    """A predicted update: a delta for each weight, in place of `horizon` ordinary updates."""

    horizon: int = attrs.field(validator=_gt(0))
    delta: DeltaOf
    """`delta(span)` returns a float tensor of the span's shape on any device, or None for no
    change. The core calls it span by span, so only one delta must exist at a time."""
    add: Callable[[torch.Tensor, torch.Tensor, float], None] | None = None
    """`add(weight, delta, scale)` adds `scale * delta` in place to `weight`, on the same device.
    The default first rounds the delta to the weight's dtype."""
    __repr__ = one_line


Probe = Callable[[Any], float]
"""`probe(batch)` returns the mean loss of the present weights and changes no state."""


@attrs.frozen
class Pace:
    """Factors for the length of jumps. A scheduler sets them in `run.stash` for the predictor."""

    scale: float = attrs.field(default=1.0, validator=[_ge(0.0), _lt(math.inf)])
    """Factor for the number of updates that a jump replaces. If it is 0, no jump is made."""
    window: float = attrs.field(default=1.0, validator=[_gt(0.0), _lt(math.inf)])
    """Factor for the number of updates that are sampled before a jump (the predictor's window)."""


PACE: StashKey[Pace] = StashKey("pace")
"""The key of the Pace. A predictor reads it at the start of each window and for each jump."""


ROLLBACK: StashKey[object] = StashKey("rollback")
"""The key to set, to any value, after weights and optimizer state were set back to earlier ones.

A plugin that has learned from updates listens (`run.stash.on_set`), and forgets what it learned.
"""


NOTES: StashKey[tuple[str, ...]] = StashKey("notes")
"""The key of lines that `neaptide run` prints before the first step. A plugin adds its line."""


DECLINED: StashKey[str | None] = StashKey("declined")
"""The key of the reason for which a Predict step tries no jump. Who declines sets it, in words."""
STOP: StashKey[str] = StashKey("stop")
"""The key of the reason for which `trainer.fit` ends the run at the present update, in words."""
MEASURED: StashKey[dict[str, float]] = StashKey("measured")
"""The key of an evaluation's metrics. Set inside `around_evaluate`; recorded with `val_loss`."""


@attrs.frozen
class Forecast:
    """The loss forecast of a dynamics model. A NaN or an infinite loss prevents the jump."""

    loss: float
    confidence: float = attrs.field()

    @confidence.validator
    def _is_share(self, _attribute: attrs.Attribute[float], value: float) -> None:
        if value < 0.0 or value > 1.0:
            msg = f"'confidence' must be from 0 to 1 (got {value})"
            raise ValueError(msg)


@attrs.frozen
class Jump:
    """A proposed jump (predicted update), and the guard's decision to accept or refuse it."""

    accepted: bool
    horizon: int
    """Number of ordinary updates that the jump replaces; each halving halves this number, too."""
    scale: float
    """Applied share of the proposed delta; 0 if the jump was refused."""
    loss_before: float
    loss_after: float
    """Loss after the last attempt. `loss_before` and `loss_after` use the batch of this step."""
    norm: float
    """L2 norm of the proposed delta."""
    confidence: float | None
    reason: str
    seconds: float

    def __repr__(self) -> str:
        verdict = "accepted" if self.accepted else f"refused: {brief(self.reason)}"
        losses = f"loss={self.loss_before:.4g} -> {self.loss_after:.4g}"
        return f"Jump({verdict}, horizon={self.horizon}, {losses})"


@attrs.define(eq=False)
class StepResult:
    """The result of `trainer.step`.

    A read of `loss`, `grad_norm` or the repr waits for the device.
    """

    step: int
    """Number of ordinary updates, including this step."""
    phase: Phase
    outcome: Outcome
    jump: Jump | None
    """The accepted or refused jump before this step's training; None without a jump."""
    memory: MemorySample | None
    """Memory after the step; None in a run without a directory."""
    seconds: float
    tokens: int | None
    """Number of tokens in the batch, padding included; None for a batch without token ids."""
    lr: float | None
    """Learning rate of the optimizer's first group; None if it is stored on a device."""
    _read_loss: Callable[[], float]
    _read_norm: Callable[[], float | None]

    def __repr__(self) -> str:
        jump = self.jump and ("accepted" if self.jump.accepted else "refused")
        return (
            f"StepResult(step={self.step}, phase={self.phase}, outcome={self.outcome.value}, "
            f"loss={self.loss:.6g}, jump={jump})"
        )

    @property
    def loss(self) -> float:
        """Mean training loss of the batch."""
        return self._read_loss()

    @property
    def grad_norm(self) -> float | None:
        """Global L2 norm of the gradients before clipping; None if it was not measured."""
        return self._read_norm()

    @property
    def was_predicted(self) -> bool:
        """True if a jump was accepted in this step."""
        return self.jump is not None and self.jump.accepted

    @property
    def confidence(self) -> float | None:
        """The forecast's confidence in the jump; None without a jump or without a forecast."""
        return self.jump.confidence if self.jump else None

    @property
    def updated(self) -> bool:
        """True if an ordinary update changed the weights."""
        return self.outcome is Outcome.APPLIED
