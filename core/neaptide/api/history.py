"""History: ring buffers of losses, gradient norms and step times."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

LOSSES = 256
GRADIENT_NORMS = 64
SECONDS = 64


class History:
    """The newest measurements of a run, for predictors and schedulers. The oldest value is first.

    On every device, the CPU included, each value is added one step late. Therefore no step waits
    for the accelerator, and the history does not depend on the device. Losses have the unit of
    `loss_fn`. Norms are global L2 norms before clipping. Times are wall-clock seconds.
    """

    def __init__(self) -> None:
        self.updates = 0
        """Ordinary updates recorded since the start of training."""
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._gradient_norms: deque[float] = deque(maxlen=GRADIENT_NORMS)
        self._seconds: deque[float] = deque(maxlen=SECONDS)

    @property
    def losses(self) -> Sequence[float]:
        """Training losses of the newest updates, at most 256."""
        return tuple(self._losses)

    @property
    def gradient_norms(self) -> Sequence[float]:
        """Gradient norms of the newest updates, at most 64; empty if norms are not measured."""
        return tuple(self._gradient_norms)

    @property
    def seconds(self) -> Sequence[float]:
        """Wall-clock seconds of the newest 64 steps; results must not depend on these times."""
        return tuple(self._seconds)

    def __repr__(self) -> str:
        newest = f", loss={self._losses[-1]:.6g}" if self._losses else ""
        return f"History(updates={self.updates}{newest})"

    def record(self, loss: float, gradient_norm: float | None, seconds: float) -> None:
        """Append the values of one ordinary update."""
        self.updates += 1
        self._losses.append(loss)
        self._seconds.append(seconds)
        if gradient_norm is not None:
            self._gradient_norms.append(gradient_norm)

    def state_dict(self) -> dict[str, Any]:
        """Return all values except the times, because times differ from run to run."""
        return {
            "updates": self.updates,
            "losses": list(self._losses),
            "gradient_norms": list(self._gradient_norms),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a value that `state_dict` returned."""
        self.updates = state["updates"]
        self._losses = deque(state["losses"], maxlen=LOSSES)
        self._gradient_norms = deque(state["gradient_norms"], maxlen=GRADIENT_NORMS)
        self._seconds.clear()
