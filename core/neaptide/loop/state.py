"""Where a run stands: everything the loop moves forward, and what of it a checkpoint keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.api.history import History
from neaptide.api.phases import PHASES
from neaptide.api.steps import WeighedLoss, nonzero

if TYPE_CHECKING:
    from neaptide.api.memory import MemorySample
    from neaptide.api.phases import Phase, PhaseSchedule


@attrs.define(eq=False)
class Accumulation:
    """The micro-batches whose gradients are waiting for an update.

    Gradients add up as if divided by the first micro-batch's count, so that a single one is not
    rounded at all; `gradient_scale` then turns them into the gradient of the mean over all,
    grad(sum of sums / sum of counts), whatever the counts.
    """

    pieces: int = 0
    reference: float | torch.Tensor = 1.0
    """Count of the first micro-batch."""
    weight: float | torch.Tensor = 0.0
    """Sum of count / reference over the pieces."""
    loss: float | torch.Tensor = 0.0
    """Sum of loss sums / reference over the pieces, detached."""

    def add(self, loss: WeighedLoss) -> torch.Tensor:
        """Take in one micro-batch; return the 0-dim loss to run backward from."""
        if self.pieces == 0:
            self.pieces, self.reference = 1, nonzero(loss.count)
            share = loss.over(self.reference)
            self.weight, self.loss = loss.count / self.reference, share.detach()
            return share
        self.pieces += 1
        share = loss.over(self.reference)
        self.weight = self.weight + loss.count / self.reference
        self.loss = self.loss + share.detach()
        return share

    @property
    def gradient_scale(self) -> float | torch.Tensor:
        """What the accumulated gradients have to be multiplied by: 1 for a single piece."""
        return 1.0 if self.pieces <= 1 else 1.0 / nonzero(self.weight)

    @property
    def mean(self) -> torch.Tensor:
        """The mean loss over all pieces, 0-dim."""
        weight = nonzero(self.weight)
        unscaled = isinstance(weight, float) and weight == 1.0
        return torch.as_tensor(self.loss if unscaled else self.loss / weight)

    def state_dict(self) -> dict[str, Any]:
        """Return the four fields."""
        return attrs.asdict(self, recurse=False)


class LateScalar:
    """A 0-dim CUDA tensor on its way to the host: nothing waits for the device until it is read.

    The copy is queued at once, behind what computes the value, so that reading it later waits for
    that alone and not for the work queued since.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._value = torch.empty((), dtype=tensor.dtype, pin_memory=True)
        self._value.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._event.record()

    def __float__(self) -> float:
        self._event.synchronize()
        return float(self._value)


def late(tensor: torch.Tensor) -> LateScalar | float:
    """Return the value of a 0-dim tensor without waiting for a device."""
    return LateScalar(tensor) if tensor.is_cuda else tensor.item()


@attrs.define(eq=False)
class Pending:
    """One update whose loss and norm have not been read from the device yet."""

    step: int
    phase: Phase
    loss: LateScalar | float
    gradient_norm: LateScalar | float | None
    seconds: float
    memory: MemorySample | None = None
    applied: bool = True
    """False for a skipped update, which the history never sees."""

    def read_loss(self) -> float:
        """Return the loss, waiting for the device the first time."""
        self.loss = float(self.loss)
        return self.loss

    def read_norm(self) -> float | None:
        """Return the gradient norm where measured, waiting for the device the first time."""
        if self.gradient_norm is not None:
            self.gradient_norm = float(self.gradient_norm)
        return self.gradient_norm


@attrs.define(eq=False)
class TrainState:
    """The mutable state of a run outside model, optimizer and plugins."""

    schedule: PhaseSchedule
    step: int = 0
    """Ordinary updates made, skipped ones included: what the LR schedule counts."""
    batches: int = 0
    """Batches taken from the data."""
    predicted: int = 0
    """Sum of the horizons of accepted jumps."""
    jumps: int = 0
    """Accepted jumps."""
    skipped_in_a_row: int = 0
    phase: Phase | None = None
    """The phase plugins have been told of; None before the first step and after a resume."""
    history: History = attrs.field(factory=History)
    accumulation: Accumulation = attrs.field(factory=Accumulation)
    pending: Pending | None = None

    @property
    def backward_skipped(self) -> float:
        """Share of updates that needed no backward: predicted / (predicted + made)."""
        return self.predicted / max(1, self.predicted + self.step)

    def settle(self) -> Pending | None:
        """Read the pending update into the history, one step late; return it."""
        pending, self.pending = self.pending, None
        if pending is not None and pending.applied:
            self.history.record(pending.read_loss(), pending.read_norm(), pending.seconds)
        return pending

    def state_dict(self) -> dict[str, Any]:
        """Return what resume needs; wall-clock times are left out of it."""
        pending = self.pending
        return {
            "step": self.step,
            "batches": self.batches,
            "predicted": self.predicted,
            "jumps": self.jumps,
            "skipped_in_a_row": self.skipped_in_a_row,
            "schedule": self.schedule.state_dict(),
            "history": self.history.state_dict(),
            "accumulation": self.accumulation.state_dict(),
            "pending": None
            if pending is None
            else {
                "step": pending.step,
                "phase": pending.phase.name,
                "loss": pending.read_loss(),
                "gradient_norm": pending.read_norm(),
                "applied": pending.applied,
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned; plugins are told of the phase anew."""
        self.step = state["step"]
        self.batches = state["batches"]
        self.predicted = state["predicted"]
        self.jumps = state["jumps"]
        self.skipped_in_a_row = state["skipped_in_a_row"]
        self.schedule = self.schedule.restored(state["schedule"])
        self.history.load_state_dict(state["history"])
        self.accumulation = Accumulation(**state["accumulation"])
        pending = state["pending"]
        self.pending = (
            None
            if pending is None
            else Pending(**{**pending, "phase": PHASES[pending["phase"]]}, seconds=0.0)
        )
        self.phase = None
