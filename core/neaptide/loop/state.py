"""The state of the loop. Converts this state to and from the state tree of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.api.history import History
from neaptide.api.phases import PHASES
from neaptide.api.steps import WeighedLoss, nonzero
from neaptide.devices import api_of, has_streams

if TYPE_CHECKING:
    from neaptide.api.memory import MemorySample
    from neaptide.api.phases import Phase, PhaseSchedule


@attrs.define(eq=False)
class Accumulation:
    """The micro-batches whose gradients are accumulated for the next update.

    Each loss sum is divided by `Loss.count` of the first micro-batch, so that the mean of a single
    micro-batch is not rounded. After that, `gradient_scale` turns the accumulated gradients into
    the gradient of the mean over all micro-batches: sum of the loss sums / sum of the counts.
    """

    pieces: int = 0
    reference: float | torch.Tensor = 1.0
    """The count of the first micro-batch."""
    weight: float | torch.Tensor = 0.0
    """The sum of (count / `reference`) over the micro-batches."""
    loss: float | torch.Tensor = 0.0
    """The sum of (loss sum / `reference`) over the micro-batches, detached."""

    def add(self, loss: WeighedLoss) -> torch.Tensor:
        """Add one micro-batch; return the 0-dim loss for its backward."""
        first = self.pieces == 0
        self.pieces += 1
        self.reference = loss.count if first else self.reference
        share, weight = loss.over(self.reference), loss.count / nonzero(self.reference)
        self.weight = weight if first else self.weight + weight
        self.loss = share.detach() if first else self.loss + share.detach()
        return share

    @property
    def gradient_scale(self) -> float | torch.Tensor:
        """The factor that multiplies the accumulated gradients; 1 for a single micro-batch."""
        return 1.0 if self.pieces <= 1 else 1.0 / nonzero(self.weight)

    @property
    def mean(self) -> torch.Tensor:
        """The mean loss over all micro-batches, 0-dim."""
        weight = nonzero(self.weight)
        unscaled = isinstance(weight, float) and weight == 1.0
        return torch.as_tensor(self.loss if unscaled else self.loss / weight)


class LateScalar:
    """An asynchronous copy of a 0-dim tensor to the host. Only `float()` waits for the copy.

    `__init__` queues the copy, so `float()` does not wait for work that is queued later.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._value = torch.empty((), dtype=tensor.dtype, device="cpu", pin_memory=True)
        self._value.copy_(tensor, non_blocking=True)
        self._event = api_of(tensor.device).Event()
        self._event.record()

    def __float__(self) -> float:
        self._event.synchronize()
        return float(self._value)


def late(tensor: torch.Tensor) -> LateScalar | float:
    """Return the value of a 0-dim tensor; if it is on a device with streams, a `LateScalar`."""
    waits = tensor.is_cpu or not has_streams(tensor.device)
    return tensor.item() if waits else LateScalar(tensor)


@attrs.define(eq=False)
class Pending:
    """One update, whose loss and gradient norm may still be on the device."""

    step: int
    phase: Phase
    loss: LateScalar | float
    gradient_norm: LateScalar | float | None
    seconds: float
    memory: MemorySample | None = None
    applied: bool = True
    """False for a skipped update. Such an update is not added to the history."""

    def read_loss(self) -> float:
        """Return the loss; the first call waits for the device."""
        self.loss = float(self.loss)
        return self.loss

    def read_norm(self) -> float | None:
        """Return the gradient norm or None; the first call waits for the device."""
        if self.gradient_norm is not None:
            self.gradient_norm = float(self.gradient_norm)
        return self.gradient_norm


COUNTERS = {"step", "batches", "predicted", "jumps", "skipped_in_a_row"}


@attrs.define(eq=False)
class TrainState:
    """The mutable state of a run, without the state of the model, optimizer and plugins."""

    schedule: PhaseSchedule
    step: int = 0
    """Number of ordinary and skipped updates. The learning rate depends on this number."""
    batches: int = 0
    """Batches taken from the data."""
    predicted: int = 0
    """Sum of the horizons of accepted jumps."""
    jumps: int = 0
    """Accepted jumps."""
    skipped_in_a_row: int = 0
    phase: Phase | None = None
    """The phase of the last `on_phase_enter`; None before the first step and after a resume."""
    history: History = attrs.field(factory=History)
    accumulation: Accumulation = attrs.field(factory=Accumulation)
    pending: Pending | None = None
    half_loaded: object = None
    """The checkpoint whose loading ended in an error after it began to change the run."""

    @property
    def backward_skipped(self) -> float:
        """Share of updates without a backward: predicted / (predicted + ordinary)."""
        return self.predicted / max(1, self.predicted + self.step)

    def settle(self) -> Pending | None:
        """Add the pending update of the previous step to the history; return the update or None."""
        pending, self.pending = self.pending, None
        if pending is not None and pending.applied:
            self.history.record(pending.read_loss(), pending.read_norm(), pending.seconds)
        return pending

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs. Wall-clock times are not saved."""
        pending = self.pending
        return {
            **{name: getattr(self, name) for name in sorted(COUNTERS)},
            "schedule": self.schedule.state_dict(),
            "history": self.history.state_dict(),
            "accumulation": attrs.asdict(self.accumulation, recurse=False),
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
        """Load a value that `state_dict` returned. The next step calls `on_phase_enter` again."""
        for name in COUNTERS:
            setattr(self, name, state[name])
        self.schedule = self.schedule.restored(state["schedule"])
        self.history.load_state_dict(state["history"])
        self.accumulation = Accumulation(**state["accumulation"])
        pending = state["pending"]
        self.pending = pending and Pending(
            **{**pending, "phase": PHASES[pending["phase"]]}, seconds=0.0
        )
        self.phase = None
