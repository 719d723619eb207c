"""What passes between the loop, the middleware and the user: losses, outcomes, jumps, results."""

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
    """A loss as sum and count, so that micro-batches of unequal weight add up exactly.

    `loss_fn` may return one (`count`: the tokens or targets behind `sum`, a number or a 0-dim
    tensor) or a plain 0-dim mean, which then weighs as many samples as the batch has.
    """

    sum: torch.Tensor
    count: float | torch.Tensor

    __repr__ = one_line


@attrs.frozen(eq=False)
class WeighedLoss:
    """A loss in the form it came (a sum, or a mean) and what it weighs. The loop's own form."""

    value: torch.Tensor
    count: float | torch.Tensor
    is_sum: bool

    __repr__ = one_line

    def over(self, reference: float | torch.Tensor) -> torch.Tensor:
        """Return `sum / reference`, without rounding a mean whose count is the reference."""
        if self.is_sum:
            return self.value / reference
        share = self.count / reference
        return self.value if share == 1.0 else self.value * share

    @property
    def mean(self) -> torch.Tensor:
        """The mean, 0-dim; zero where nothing counts."""
        return self.over(nonzero(self.count))


def nonzero(count: float | torch.Tensor) -> float | torch.Tensor:
    """Return `count`, or one where it is zero, without reading a device."""
    if isinstance(count, torch.Tensor):
        return torch.where(count == 0, torch.ones_like(count), count)
    return count or 1.0


def weigh(returned: object, batch: object) -> WeighedLoss:
    """Take what `loss_fn` returned, with the weight it has; TypeError if it is no loss."""
    if isinstance(returned, Loss):
        return WeighedLoss(returned.sum, returned.count, is_sum=True)
    if isinstance(returned, torch.Tensor) and returned.numel() == 1:
        mean = returned.reshape(()) if returned.ndim else returned
        return WeighedLoss(mean, batch_length(batch), is_sum=False)
    what = (
        f"a tensor of shape {tuple(returned.shape)}"
        if isinstance(returned, torch.Tensor)
        else type(returned).__name__
    )
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
    """Return the samples of a batch: dim 0 of its first tensor, 1 where there is none."""
    tensor = first_tensor(batch)
    return 1 if tensor is None else tensor.shape[0]


class Outcome(Enum):
    """What became of one optimizer step."""

    APPLIED = "applied"
    """The weights moved."""
    SKIPPED = "skipped"
    """Loss or gradients were not finite: nothing moved, the gradients are dropped."""
    DEFERRED = "deferred"
    """Nothing moved yet, the gradients go on accumulating."""


@attrs.frozen(eq=False)
class Trained:
    """One ordinary step, still on the device."""

    loss: torch.Tensor
    """Mean over the batch, 0-dim, detached."""
    gradient_norm: torch.Tensor | None
    """L2 norm before clipping; None unless measured."""
    outcome: Outcome

    __repr__ = one_line


@attrs.frozen(eq=False)
class Update:
    """A predicted update: what to add to each weight, and how many ordinary updates that is."""

    horizon: int = attrs.field(validator=_gt(0))
    delta: DeltaOf
    """`delta(span)` returns a float tensor of the span's shape on any device, or None for no
    change. Called span by span, so that deltas of a large model need never exist all at once."""
    add: Callable[[torch.Tensor, torch.Tensor, float], None] | None = None
    """`add(weight, delta, scale)` adds in place, both tensors on one device; left out, the delta is
    rounded to the weight's dtype first."""

    __repr__ = one_line


Probe = Callable[[Any], float]
"""`probe(batch)`: the mean loss of the weights as they are, by a forward that leaves no trace."""


@attrs.frozen
class Pace:
    """How boldly to predict, from who judges jumps to who proposes them: left in `run.stash`."""

    scale: float = attrs.field(default=1.0, validator=[_ge(0.0), _lt(math.inf)])
    """Multiplies how far a predictor goes; 0: no jump."""
    window: float = attrs.field(default=1.0, validator=[_gt(0.0), _lt(math.inf)])
    """Multiplies how long it looks before it goes."""


PACE: StashKey[Pace] = StashKey("pace")
"""Where the pace is; a predictor reads it when it opens a window and when it proposes."""


@attrs.frozen
class JumpGain:
    """What a jump turned out to be worth, from who judges jumps later: left in `run.stash`."""

    jump: int
    """Number of the update that the jump came before, its row's in `steps.csv`."""
    horizon: int
    gain: float
    """What it takes off the loss; negative: it costs."""
    stderr: float
    """Standard error of the gain."""


JUMP_GAIN: StashKey[JumpGain] = StashKey("jump-gain")
"""Where that of the newest jump judged is; a scheduler reads it after each step."""


@attrs.frozen
class Forecast:
    """What a dynamics model expects. Where either is NaN, or the loss infinite: no jump."""

    loss: float
    confidence: float = attrs.field()

    @confidence.validator
    def _is_share(self, _attribute: attrs.Attribute[float], value: float) -> None:
        if value < 0.0 or value > 1.0:
            msg = f"'confidence' must be from 0 to 1 (got {value})"
            raise ValueError(msg)


@attrs.frozen
class Jump:
    """One proposed jump and the guard's verdict."""

    accepted: bool
    horizon: int
    """Updates it stands for, halvings taken off; refused, those it was to stand for."""
    scale: float
    """Share of the proposed delta that was applied; 0 when refused."""
    loss_before: float
    loss_after: float
    """Probe losses on the held batch, forward only; after the last attempt."""
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
    """What `trainer.step` returns. Its loss and norm, and so printing it, wait for the device."""

    step: int
    """Ordinary updates made so far, this one included."""
    phase: Phase
    outcome: Outcome
    jump: Jump | None
    """The jump before this step's training, accepted or refused; None when there was none."""
    memory: MemorySample | None
    """None unless the run measures memory (it has a directory)."""
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
        """Mean training loss of this batch."""
        return self._read_loss()

    @property
    def grad_norm(self) -> float | None:
        """Global L2 norm of the gradients before clipping, where measured."""
        return self._read_norm()

    @property
    def was_predicted(self) -> bool:
        """Whether a jump was accepted in this step."""
        return self.jump is not None and self.jump.accepted

    @property
    def confidence(self) -> float | None:
        """The dynamics model's confidence in the jump; None without either."""
        return self.jump.confidence if self.jump else None

    @property
    def updated(self) -> bool:
        """Whether the weights moved by an ordinary update."""
        return self.outcome is Outcome.APPLIED
