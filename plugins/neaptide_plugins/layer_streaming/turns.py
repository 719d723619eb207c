"""Decides whose the module's tensors are: the run's in a step, the user's between steps.

Between steps no copy of a weight is on the device, and no copy is under way. So whatever the user
does to the tensors of the module counts, as it does without streaming.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from neaptide.errors import ended_by
from neaptide.run.fit import FITTING
from neaptide_toolkit.integrations.waiting import WAITING

from .updates.step_hooks import check_no_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide import Run

    from .streaming import Streaming


class Turns:
    """The turns of a run and its user.

    `trainer.fit` makes all its steps in one turn, unless code between them may change weights.
    """

    def __init__(self, streaming: Streaming, run: Run) -> None:
        self._streaming = streaming
        self._run = run
        self._depth = 0
        self._fit: object = None
        """The `FITTING` value of the last turn."""
        streaming.residency.fresh = self._users_turn
        self._permission = streaming.gradients.permission
        self._permission.in_step = self._permission.in_final_backward = False

    def _users_turn(self) -> bool:
        return not self._depth and self._run.stash.get(FITTING) is None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the module's tensors for a step or an evaluation; contexts may be nested."""
        streaming, fit = self._streaming, self._run.stash.get(FITTING)
        if not self._depth:
            streaming.residency.touched.begin()
        if not self._depth and (fit is None or fit is not self._fit):
            self._fit = fit
            streaming.forget_copies()
            self.check_hooks()
            streaming.gradients.begin(waiting=self._run.stash.get(WAITING) is True)
        self._depth += 1
        self._permission.in_step = True
        with ended_by(partial(self._leave, fit)):
            yield

    def _leave(self, fit: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._permission.in_step = False
        if fit is None:
            self._streaming.forget_copies()
        else:
            self._streaming.residency.touched.end()

    def check_hooks(self) -> None:
        """Raise ModelError if a hook on the optimizer's step would not see every gradient."""
        if self._streaming.settings.in_backward:
            check_no_hooks(self._streaming.optimizer)
