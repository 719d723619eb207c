"""Every hook, by lifecycle. The docstrings say WHEN a hook runs and what it may do.

An implementation names only the arguments it uses. Around hooks return a middleware
`f(next, **arguments)`, composed once per run with the first plugin outermost; notifications
observe and return None. Collecting hooks run on all plugins, firstresult hooks stop at the first
that does not return None, the core's own answer coming last.
"""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

from neaptide.plugin import PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch
    from torch import nn

    from neaptide.api import middleware
    from neaptide.api.history import History
    from neaptide.api.kernels import KernelScope
    from neaptide.api.memory import Ledger
    from neaptide.api.parameters import ParameterStore
    from neaptide.api.phases import Phase, PhaseSchedule
    from neaptide.api.records import Finding, StepRecord
    from neaptide.api.steps import Forecast, Probe, StepResult, Update
    from neaptide.api.task import Data, DataSpec, ModelSpec, Run, Task

hookspec = pluggy.HookspecMarker(PROJECT)


# --- assembly: once, in this order -------------------------------------------------------------


@hookspec(firstresult=True)
def build_model(spec: ModelSpec) -> nn.Module | Task | None:
    """Build the model a config names. A scheme of the manifest decides who is asked.

    Runs first, for runs from a config only; a user's own loop brings its model. Return a module
    whose forward takes a mapping batch and returns an object with `.loss`, or a
    `Task(module, loss_fn)`.
    """


@hookspec(firstresult=True)
def build_data(spec: DataSpec) -> Data | None:
    """Build the training and validation batches a config names, once the trainer is assembled."""


@hookspec
def register_kernels(kernels: KernelScope) -> None:
    """Add providers of ops with `kernels.add`, or ask for some with `kernels.use`.

    Runs when the model is built and nothing else is; all of it is undone when the run ends. Also
    called without a run, on a plugin with default settings, by `neaptide kernels`.
    """


@hookspec
def convert_model(model: nn.Module) -> None:
    """Patch or replace parts of the model in place, before an optimizer sees its parameters.

    Whatever is patched must be undone in `on_run_end`.
    """


@hookspec(firstresult=True)
def configure_optimizer(
    model: nn.Module, name: str, lr: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer | None:
    """Build the optimizer `[optimizer]` names. The core knows torch.optim and `module:Class`."""


@hookspec(firstresult=True)
def provide_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer, run: Run
) -> ParameterStore | None:
    """Provide the only way to weights, gradients and optimizer state; default: all resident.

    A plugin that claims `device.placement` finds the model wherever it was built and brings what
    belongs there to `run.device`; without one the core has moved all of it.
    """


# --- around: each returns a middleware or None; called once, after `on_run_start` ----------------


@hookspec
def around_train_step(run: Run) -> middleware.AroundTrainStep | None:
    """Wrap one ordinary step: `f(next, *, batch, phase) -> Trained`.

    Everything of it lies inside: micro-batches, backward, update. A jump before it does not.
    """


@hookspec
def around_forward(run: Run) -> middleware.AroundForward | None:
    """Wrap each call of model and loss: `f(next, *, model, batch, phase, moment) -> WeighedLoss`.

    `batch` is one micro-batch; `moment` is `"train"`, `"probe"` (the guard, no grad) or
    `"evaluate"` (no grad).
    """


@hookspec
def around_backward(run: Run) -> middleware.AroundBackward | None:
    """Wrap each backward: `f(next, *, loss, phase) -> None`, `loss` a 0-dim tensor with grad.

    A middleware that multiplies the loss divides the gradients again in `around_optimizer_step`.
    """


@hookspec
def around_optimizer_step(run: Run) -> middleware.AroundOptimizerStep | None:
    """Wrap the update: `f(next, *, optimizer, gradient_scale, check_norm, updated, phase)`.

    Gradients are multiplied by `gradient_scale` (float or 0-dim tensor) before they are measured,
    clipped and used; `check_norm=True` asks that they be checked for inf and nan; `updated` names
    the spans already stepped in backward. Returns an `Outcome`: return `Outcome.DEFERRED` without
    calling `next` to go on accumulating.
    """


@hookspec
def around_predict(run: Run) -> middleware.AroundPredict | None:
    """Wrap a Predict step: `f(next, *, batch, horizon, phase) -> Jump or None`.

    Shorten it through `horizon`, or veto it by returning None.
    """


@hookspec
def around_propose(run: Run) -> middleware.AroundPropose | None:
    """Wrap the asking for an update: `f(next, *, store, history, horizon) -> Update or None`.

    Correct, scale or drop what the predictor proposed, before the guard judges it.
    """


@hookspec
def around_correct(run: Run) -> middleware.AroundCorrect | None:
    """Wrap an ordinary step of the Correct phase: `f(next, *, batch, phase) -> Trained`.

    It lies inside `around_train_step`.
    """


@hookspec
def around_evaluate(run: Run) -> middleware.AroundEvaluate | None:
    """Wrap an evaluation: `f(next, *, batches, phase) -> float`, the mean loss over `batches`."""


@hookspec
def around_save(run: Run) -> middleware.AroundSave | None:
    """Wrap writing a checkpoint: `f(next, *, directory) -> Path`."""


# --- run ----------------------------------------------------------------------------------------


@hookspec
def on_run_start(run: Run, model: nn.Module, store: ParameterStore, probe: Probe) -> None:
    """Run after assembly and before the first step or the loading of a checkpoint.

    `probe(batch)` is for later: the mean loss, a float, of the weights as they are then, by a
    forward that leaves no trace.
    """


@hookspec
def on_run_end(run: Run, error: BaseException | None) -> None:
    """Run once, in reverse order and on every plugin whatever the others raise; undo patches."""


# --- phase --------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def select_phase(history: History, schedule: PhaseSchedule) -> Phase | None:
    """Choose the phase of the coming step; the core's answer is `schedule.due()`."""


@hookspec(firstresult=True)
def propose_update(store: ParameterStore, history: History, horizon: int) -> Update | None:
    """Propose one predicted update that stands for at most `horizon` ordinary ones.

    Runs at the start of a Predict step. None (the window is not full yet, say) makes the step an
    ordinary one. Must not change weights: the core applies, judges and takes back. Weights that
    changed meanwhile end the run with PluginError.
    """


@hookspec(firstresult=True)
def forecast(history: History, horizon: int) -> Forecast | None:
    """Forecast the loss `horizon` updates ahead, before a jump is proposed.

    Asked only of a plugin that claims `dynamics`; its confidence is compared with
    `phases.predict.confidence`. None: it has nothing to say, and the jump is proposed without.
    """


@hookspec(firstresult=True)
def plan_micro_batches(batch: Any) -> Sequence[Any] | None:
    """Split one step's batch into the micro-batches of its forwards and backwards, in order."""


@hookspec
def on_phase_enter(phase: Phase, previous: Phase | None, step: int) -> None:
    """Run when a phase begins; `previous` is None at the first step after a start or resume."""


@hookspec
def on_phase_exit(phase: Phase, following: Phase | None, step: int) -> None:
    """Run when a phase ends; `following` is None at the end of the run and before a resume."""


# --- notify: observe, return nothing ----------------------------------------------------------


@hookspec
def before_forward(step: int, phase: Phase, model: nn.Module, batch: Any) -> None:
    """Run before each training forward, outside `around_forward`; `batch` is one micro-batch."""


@hookspec
def after_forward(step: int, phase: Phase, loss: torch.Tensor) -> None:
    """Run after each training forward; `loss` is the detached 0-dim mean of the micro-batch."""


@hookspec
def after_backward(step: int, phase: Phase, model: nn.Module) -> None:
    """Run after each backward, before gradients are scaled or clipped."""


@hookspec
def after_step(step: int, phase: Phase, result: StepResult) -> None:
    """Run at the end of each `trainer.step`. Reading `result.loss` waits for the device."""


@hookspec
def on_record(record: StepRecord) -> None:
    """Run for each row of steps.csv: an update once its loss is on the host, or an accepted jump.

    An update's comes during the step after it, the last one's at the end of the run. Everything in
    it is a plain number, so that reading it waits for nothing. Called without a run directory too.
    """


@hookspec
def on_metrics(step: int, phase: Phase, metrics: Mapping[str, float]) -> None:
    """Run for each line of metrics.jsonl: `lr` and every plugin's numbers, or `val_loss`."""


# --- account ----------------------------------------------------------------------------------


@hookspec
def estimate_memory(ledger: Ledger, phase: Phase) -> Ledger:
    """Return `ledger` changed by what this plugin adds, moves or shrinks in `phase`.

    Folded over the plugins in resolved order, after `on_run_start`.
    """


@hookspec
def collect_metrics(step: int, phase: Phase) -> Mapping[str, float]:
    """Return numbers for metrics.jsonl, at every phase change and every `run.log_every` updates.

    Asked where there is a run directory or a plugin with `on_metrics`.
    """


# --- doctor: without a run ----------------------------------------------------------------------


@hookspec
def diagnose() -> Iterable[Finding]:
    """Examine this machine for `neaptide doctor`: what the plugin needs of it, and what is amiss.

    Called on an instance with the default config, without a run, on every installed plugin.
    """
