"""One step of training: the phase, the jump, the micro-batches, the update."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from neaptide.api.phases import CORRECT, PREDICT, Phase
from neaptide.api.steps import DECLINED, Jump, Outcome, StepResult, Trained, Update, weigh
from neaptide.devices import widest
from neaptide.errors import ended_by
from neaptide.targets import Units
from neaptide.tensors import token_count

from .guard import undisturbed
from .predict import attempt, note_jump
from .state import Accumulation, Pending, late
from .update import apply_gradients, backward, norm_every, note_skipped, rate_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch import nn

    from neaptide.api.memory import MemorySample
    from neaptide.api.parameters import ParameterStore
    from neaptide.api.steps import WeighedLoss
    from neaptide.api.task import LossFn, Run
    from neaptide.config import RunConfig
    from neaptide.hooks.manager import HookManager

    from .state import TrainState


class Loop:
    """Trains a model step by step. Hooks and the config decide what a step does."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        store: ParameterStore,
        hooks: HookManager,
        run: Run,
        state: TrainState,
        measure: Callable[[], MemorySample] | None,
        record: Callable[[Pending], None],
        changing: Callable[[Phase | None], None],
    ) -> None:
        self.model = model
        self.store = store
        self.hooks = hooks
        self.run = run
        self.state = state
        self._config: RunConfig = run.config
        self._measure = measure
        self._record = record
        self._changing = changing
        self._loss_fn = loss_fn
        self._norm: torch.Tensor | None = None  # of the present update; None until measured
        self._units = Units()
        self._added = False  # whether the present step has added to the gradients
        self._norm_every = norm_every(run.config.train, store, hooks.specs.values())
        self._forward = hooks.around("around_forward", self._call_model, run)
        self._backward = hooks.around("around_backward", backward, run)
        self._optimizer_step = hooks.around("around_optimizer_step", self._update, run)
        self._correct = hooks.around("around_correct", self._train, run)
        self._train_step = hooks.around("around_train_step", self._dispatch, run)
        self._propose = hooks.around(
            "around_propose", partial(hooks.first, "propose_update", Update), run
        )
        self._predict_step = hooks.around("around_predict", self._predict, run)
        self._evaluate = hooks.around("around_evaluate", self._mean_loss, run)
        notified = ("before_forward", "after_forward", "after_backward", "after_step")
        self._notifies = {hook: hooks.implements(hook) for hook in notified}
        self._scheduled = hooks.left_to_core("select_phase")

    # -- one step ---------------------------------------------------------------------------------

    def step(self, batch: Any, phase: Phase | None = None) -> StepResult:
        """Train on `batch`; in Predict, first try a jump (a predicted update).

        `phase` overrides the schedule.
        """
        state, started = self.state, time.perf_counter()
        self._added = False
        known = {"history": state.history, "schedule": state.schedule}
        due = state.schedule.due() if self._scheduled else None
        chosen: Phase = phase or due or self.hooks.first("select_phase", Phase, **known)
        jump = None
        if chosen.applies_prediction:
            jump = self._jump(batch)
            chosen = state.schedule.due()
        self.enter(chosen)
        with self.run.timeline.open(f"step {state.step + 1} {chosen.name}", "step"):
            trained: Trained = self._train_step(batch=batch, phase=chosen)
        state.batches += 1
        result = self._finish(trained, chosen, jump, batch, time.perf_counter() - started)
        if self._notifies["after_step"]:
            self.hooks.notify("after_step", step=state.step, phase=chosen, result=result)
        return result

    def enter(self, phase: Phase) -> None:
        """Change to `phase`; notify the plugins if it is not the present phase."""
        state = self.state
        state.schedule = state.schedule.enter(phase)
        if phase is state.phase:
            return
        previous, state.phase = state.phase, phase
        self._changing(previous)
        if previous is not None:
            self.hooks.notify("on_phase_exit", phase=previous, following=phase, step=state.step)
        self.hooks.notify("on_phase_enter", phase=phase, previous=previous, step=state.step)

    def _finish(
        self, trained: Trained, phase: Phase, jump: Jump | None, batch: Any, seconds: float
    ) -> StepResult:
        state = self.state
        if trained.outcome is not Outcome.DEFERRED:
            state.step += 1
            state.schedule = state.schedule.updated()
            state.accumulation = Accumulation()
        memory = self._measure() if self._measure else None
        norm = None if trained.gradient_norm is None else late(trained.gradient_norm)
        applied = trained.outcome is Outcome.APPLIED
        now = Pending(state.step, phase, late(trained.loss), norm, seconds, memory, applied)
        if trained.outcome is not Outcome.DEFERRED:
            self.settle()
            state.pending = now
            state.skipped_in_a_row = 0 if now.applied else state.skipped_in_a_row + 1
        if trained.outcome is Outcome.SKIPPED:
            note_skipped(state, now, self.run)
        more = token_count(batch), rate_of(self.store.optimizer), now.read_loss, now.read_norm
        return StepResult(state.step, phase, trained.outcome, jump, memory, seconds, *more)

    def abandon(self) -> None:
        """Drop the gradients of a step that raised.

        If the step has added no gradients, gradients that earlier steps accumulated are kept.
        """
        if self._added or not self.state.accumulation.pieces:
            self.store.zero_gradients()
            self.state.accumulation = Accumulation()

    def settle(self) -> None:
        """Read the previous update from the device and record it."""
        settled = self.state.settle()
        if settled is not None:
            self._record(settled)

    # -- training ---------------------------------------------------------------------------------

    def _dispatch(self, *, batch: Any, phase: Phase) -> Any:
        call = self._correct if phase is CORRECT else self._train
        return call(batch=batch, phase=phase)

    def _train(self, *, batch: Any, phase: Phase) -> Trained:
        try:
            self._accumulate(batch, phase)
            return self._apply_gradients(phase)
        except BaseException:
            self.abandon()  # a middleware may run the step again
            raise

    def _accumulate(self, batch: Any, phase: Phase) -> None:
        accumulation, notifies = self.state.accumulation, self._notifies
        planned = self.hooks.first("plan_micro_batches", (list, tuple), batch=batch) or (batch,)
        for place, micro_batch in enumerate(planned):
            if notifies["before_forward"]:
                self._notify("before_forward", phase, model=self.model, batch=micro_batch)
            weighed: WeighedLoss = self._forward(
                model=self.model, batch=micro_batch, phase=phase, moment="train"
            )
            if notifies["after_forward"]:
                self._notify("after_forward", phase, loss=weighed.mean.detach())
            self._units.check(planned, place, accumulation.pieces, is_counted=weighed.is_counted)
            self._added = True
            loss = accumulation.add(weighed)
            with self.store.compute():
                self._backward(loss=loss, phase=phase)
            if notifies["after_backward"]:
                self._notify("after_backward", phase, model=self.model)

    def _apply_gradients(self, phase: Phase) -> Trained:
        accumulation = self.state.accumulation
        self._norm = None
        outcome: Outcome = self._optimizer_step(
            optimizer=self.store.optimizer,
            gradient_scale=accumulation.gradient_scale,
            check_norm=False,
            updated=self.store.updated_in_backward(),
            phase=phase,
        )
        if outcome is not Outcome.DEFERRED:
            self.store.zero_gradients()
        return Trained(accumulation.mean, self._norm, outcome)

    def _update(
        self,
        *,
        optimizer: torch.optim.Optimizer,
        gradient_scale: float | torch.Tensor,
        check_norm: bool,
        updated: frozenset[str],
        phase: Phase,
    ) -> Outcome:
        del optimizer, phase, updated  # only middleware uses them
        if not (isinstance(gradient_scale, float) and gradient_scale == 1.0):
            self.store.scale_gradients(gradient_scale)
        if check_norm or (self.state.step + 1) % self._norm_every == 0:
            self._norm = self.store.gradient_norm()
        loss = self.state.accumulation.loss
        return apply_gradients(self.store, self._config.train, loss, self._norm)

    def _call_model(self, *, model: Any, batch: Any, phase: Phase, moment: str) -> WeighedLoss:
        del phase, moment  # only middleware uses them
        with self.store.compute():
            return weigh(self._loss_fn(model, batch), batch)

    def _notify(self, hook: str, phase: Phase, **given: Any) -> None:
        self.hooks.notify(hook, step=self.state.step, phase=phase, **given)

    # -- prediction -------------------------------------------------------------------------------

    def _jump(self, batch: Any) -> Jump | None:
        """Enter Predict, attempt one jump, and advance the schedule."""
        state, before = self.state, self.state.schedule
        self.enter(PREDICT)
        self.run.stash.set(DECLINED, None)
        with self.run.timeline.open(f"step {state.step + 1} predict", "step"):
            jump: Jump | None = self._predict_step(
                batch=batch, horizon=self._config.phases.predict.max_horizon, phase=PREDICT
            )
        note_jump(state, before, jump, self.run)
        return jump

    def _predict(self, *, batch: Any, horizon: int, phase: Phase) -> Jump | None:
        del phase  # only middleware uses it
        # A predictor may have run a backward.
        with ended_by(lambda: self.state.accumulation.pieces or self.store.zero_gradients()):
            given = self.hooks, self._propose, self.model, self.store, self.state.history
            probe, settings = partial(self.probe, batch), self._config.phases.predict
            return attempt(*given, probe, self.run.stash, horizon=horizon, settings=settings)

    def probe(self, batch: Any) -> float:
        """Return the mean loss of the present weights on `batch`, in eval mode without gradients.

        At the end, train modes, buffers and random state are restored.
        """
        phase = self.state.phase or self.state.schedule.phase
        with undisturbed(self.model):
            loss: WeighedLoss = self._forward(
                model=self.model, batch=batch, phase=phase, moment="probe"
            )
            return float(loss.mean)

    # -- evaluation -------------------------------------------------------------------------------

    def evaluate(self, batches: Iterable[Any], *, plain: bool = False) -> float:
        """Return the sum of all losses / the sum of all `Loss.count`; nan without batches.

        Restores the same state as `probe`. `plain=True` skips the middleware of `around_evaluate`.
        """
        phase = self.state.phase or self.state.schedule.phase
        evaluate = self._mean_loss if plain else self._evaluate
        return float(evaluate(batches=batches, phase=phase))

    def _mean_loss(self, *, batches: Iterable[Any], phase: Phase) -> float:
        total: Any = 0.0
        count: Any = 0.0
        units, unlike = Units(), ""
        with undisturbed(self.model):
            for place, batch in enumerate(batches):
                loss: WeighedLoss = self._forward(
                    model=self.model, batch=batch, phase=phase, moment="evaluate"
                )
                unlike = unlike or units.unlike(batch, place, is_counted=loss.is_counted)
                share = loss.over(1.0)
                total = total + share.to(widest(share.device))
                count = count + loss.count
        if unlike:
            self.run.log.warning("evaluation.weighed_by_samples", why=unlike)
        return float(total / count) if count else math.nan
