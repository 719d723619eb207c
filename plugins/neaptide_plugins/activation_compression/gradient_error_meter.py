"""Periodically measures the error that compression causes in a micro-batch's gradients."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import attrs
from torch.autograd.graph import save_on_cpu

from neaptide_toolkit.gradient_error import GradientError, Sampled, compare, gradients, sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import nn

    from neaptide import ParameterStore, Run


@attrs.define(eq=False)
class GradientErrorMeter:
    """Decides which forwards are measured, and stores the relative errors measured so far."""

    every: int
    """Steps from one measurement to the next; 0 disables the measurements."""
    run: Run
    store: ParameterStore
    due: bool = False
    last: float | None = None
    worst: float = 0.0
    count: int = 0
    _steps: int = attrs.field(init=False, default=0)
    _sampled: Sampled | None = attrs.field(init=False, default=None)

    def step(self) -> None:
        """Count a step that begins; set `due` if the forward of this step is to be measured."""
        self.due = self.every > 0 and self._steps % self.every == 0
        self._steps += 1

    def measure(
        self,
        model: nn.Module,
        exact: Callable[[], Any],
        compressed: Callable[[], Any],
        context: AbstractContextManager[Any],
    ) -> None:
        """Compare the gradients of `exact()` and `compressed()`.

        Only `compressed()` is called within `context`. On a GPU, the tensors that `exact()` saves
        are stored on the host, because the uncompressed tensors may not fit on the device.
        """
        self.due = False
        if self._sampled is None:
            self._sampled = sample(model, self.store)
            if self._sampled.missing:
                self.run.log.info("activation-compression.unmeasured", why=self._sampled.missing)
        if self._sampled.missing:
            return
        parameters = self._sampled.parameters
        with save_on_cpu() if self.run.device.type != "cpu" else nullcontext():
            wanted = gradients(model, self.store, exact, parameters)
        with context:
            found = gradients(model, self.store, compressed, parameters)
        self._note(compare(wanted, found))

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the errors measured so far."""
        names = ("steps", "last", "worst", "count")
        return dict(zip(names, (self._steps, self.last, self.worst, self.count), strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._steps, self.last = state["steps"], state["last"]
        self.worst, self.count = state["worst"], state["count"]

    def _note(self, error: GradientError) -> None:
        if not error.finite:
            return
        if not self.count:
            self.run.log.info("activation-compression.measured", gradient_error=error.relative)
        self.last, self.worst = error.relative, max(self.worst, error.relative)
        self.count += 1
