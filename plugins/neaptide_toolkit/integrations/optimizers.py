"""The optimizer that the loop of another library steps, in place of the one that is trained."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neaptide import Outcome
from neaptide.tensors import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .pieces import SteppedRun


class SteppedOptimizer(torch.optim.Optimizer):
    """Makes updates of a `SteppedRun`; shares everything else with the optimizer `real`.

    It is an Optimizer, so that schedulers take it, but has no groups and no state of its own.

    `skipped` gets, after each step, whether the update was skipped because of inf or nan.
    """

    def __init__(  # not torch's, which would make groups
        self, real: torch.optim.Optimizer, pieces: SteppedRun, skipped: Callable[[bool], None]
    ) -> None:
        self.real = real
        self._pieces = pieces
        self._skipped = skipped
        self._lent: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "real":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.real, name)

    def __repr__(self) -> str:
        return repr(self.real)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the real optimizer."""
        self.real.add_param_group(param_group)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the real optimizer, whose learning rates a scheduler changes."""
        return self.real.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.real.param_groups = groups

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call `closure` once, if there is one; update the weights; return what it returned.

        Without gradients nothing changes, as with torch's optimizers.
        """
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        if self._pieces.has_gradients:
            result = self._pieces.update()
            self._skipped(result.outcome is Outcome.SKIPPED)
        else:
            self._check_no_gradients()
            self._skipped(False)
        return value

    def _check_no_gradients(self) -> None:
        groups = self.real.param_groups
        if any(one.grad is not None for group in groups for one in group["params"]):
            msg = (
                "these gradients were made by loss.backward() itself; use the backward of this "
                "loop (accelerator.backward, self.manual_backward)"
            )
            raise RuntimeError(msg)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's
        """Drop the gradients since the last update."""
        del set_to_none  # a store decides
        self._pieces.forget()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Return a context in which `state_dict` returns the state itself and no copy of it."""
        with self._pieces.settled(), self._pieces.store.optimizer_state() as state:
            self._lent = state
            try:
                yield
            finally:
                self._lent = None

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the optimizer's state; see `lent`."""
        if self._lent is not None:
            return self._lent
        with self._pieces.settled(), self._pieces.store.optimizer_state() as state:
            copied: dict[str, Any] = mapped(state, partial(torch.clone))
            return copied

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that torch's optimizer of the same class returned."""
        with self._pieces.settled():
            self._pieces.store.load_optimizer_state_dict(state)


@contextmanager
def captured_losses(accelerator: Any) -> Iterator[list[torch.Tensor]]:
    """Yield a list that gets each loss of `accelerator.backward`, which does nothing else."""
    losses: list[torch.Tensor] = []

    def backward(loss: torch.Tensor) -> None:
        losses.append(loss / accelerator.gradient_accumulation_steps)

    accelerator.backward = backward
    try:
        yield losses
    finally:
        del accelerator.backward
