"""What the run remembers of itself: ring buffers of losses, gradient norms and step times."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

LOSSES = 256
GRADIENT_NORMS = 64
SECONDS = 64


class History:
    """The newest finite-lag measurements, oldest first. Predictors and schedulers read it.

    Values arrive one step late on every device, so that nothing waits for the accelerator and the
    same run sees the same history wherever it runs. Losses are in nats (whatever `loss_fn`
    returns), norms are global L2 norms before clipping, times are seconds of wall clock.
    """

    def __init__(self) -> None:
        self.updates = 0
        """Ordinary updates recorded since the start of training."""
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._gradient_norms: deque[float] = deque(maxlen=GRADIENT_NORMS)
        self._seconds: deque[float] = deque(maxlen=SECONDS)

    @property
    def losses(self) -> Sequence[float]:
        """Training losses of the newest updates, at most 256; non-finite ones included."""
        return tuple(self._losses)

    @property
    def gradient_norms(self) -> Sequence[float]:
        """Gradient norms of the newest updates, at most 64; empty when nobody measures them."""
        return tuple(self._gradient_norms)

    @property
    def seconds(self) -> Sequence[float]:
        """Wall-clock seconds of the newest steps, at most 64; never part of a result."""
        return tuple(self._seconds)

    def __repr__(self) -> str:
        newest = f", loss={self._losses[-1]:.6g}" if self._losses else ""
        return f"History(updates={self.updates}{newest})"

    def record(self, loss: float, gradient_norm: float | None, seconds: float) -> None:
        """Append one ordinary update."""
        self.updates += 1
        self._losses.append(loss)
        self._seconds.append(seconds)
        if gradient_norm is not None:
            self._gradient_norms.append(gradient_norm)

    def state_dict(self) -> dict[str, Any]:
        """Return what results may depend on; times are left out, they differ from run to run."""
        return {
            "updates": self.updates,
            "losses": list(self._losses),
            "gradient_norms": list(self._gradient_norms),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.updates = state["updates"]
        self._losses = deque(state["losses"], maxlen=LOSSES)
        self._gradient_norms = deque(state["gradient_norms"], maxlen=GRADIENT_NORMS)
        self._seconds.clear()
