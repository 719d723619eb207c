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
    __repr__ = one_line


@attrs.frozen(eq=False)
class WeighedLoss:
    """The sum or mean that `loss_fn` returned, and the weight of this loss."""

    value: torch.Tensor
    count: float | torch.Tensor
    is_sum: bool
    __repr__ = one_line

    def over(self, reference: float | torch.Tensor) -> torch.Tensor:
        """Return the loss sum / `reference`. A mean of `reference` values is not changed."""
        if self.is_sum:
            return self.value / reference
        share = self.count / reference
        return self.value if share == 1.0 else self.value * share

    @property
    def mean(self) -> torch.Tensor:
        """The mean loss, 0-dim; zero if the count is zero."""
        return self.over(nonzero(self.count))


def nonzero(count: float | torch.Tensor) -> float | torch.Tensor:
    """Return `count`, or 1 if `count` is zero, without waiting for a device."""
    if isinstance(count, torch.Tensor):
        return torch.where(count == 0, torch.ones_like(count), count)
    return count or 1.0


def weigh(returned: object, batch: object) -> WeighedLoss:
    """Return a value of `loss_fn` with its weight; TypeError if the value is not a loss."""
    if isinstance(returned, Loss):
        return WeighedLoss(returned.sum, returned.count, is_sum=True)
    if isinstance(returned, torch.Tensor) and returned.numel() == 1:
        mean = returned.reshape(()) if returned.ndim else returned
        return WeighedLoss(mean, batch_length(batch), is_sum=False)
    what = type(returned).__name__
    if isinstance(returned, torch.Tensor):
        what = f"a tensor of shape {tuple(returned.shape)}"
    msg = f"loss_fn must return a scalar tensor or neaptide.Loss(sum, count) (got {what})"
    raise TypeError(msg)


def first_tensor(batch: object) -> torch.Tensor | None:
    """Return the first tensor with a batch dimension in nested containers and dataclasses."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.ndim else None
    for child in batch if isinstance(batch, list | tuple) else _children(batch):
        found = first_tensor(child)
        if found is not None:
            return found
    return None


def _children(batch: object) -> list[Any]:
    if hasattr(batch, "values"):
        return list(batch.values())
    cls: Any = type(batch)
    if attrs.has(cls):
        return [getattr(batch, field.name) for field in attrs.fields(cls)]
    return [getattr(batch, name) for name in getattr(batch, "__dataclass_fields__", ())]


def batch_length(batch: object) -> int:
    """Return the number of samples: dim 0 of the first tensor in `batch`, or 1 without a tensor."""
    tensor = first_tensor(batch)
    return 1 if tensor is None else tensor.shape[0]


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


@attrs.frozen
class JumpGain:
    """The measured gain of a jump. The plugin that measures the gain sets it in `run.stash`."""

    jump: int
    """Number of the update after the jump; the same number as in `steps.csv`."""
    horizon: int
    gain: float
    """Reduction of the loss by the jump; negative if the jump raised the loss."""
    stderr: float
    """Standard error of the gain."""


JUMP_GAIN: StashKey[JumpGain] = StashKey("jump-gain")
"""The key of the latest measured gain. A scheduler reads this gain after each step."""


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
