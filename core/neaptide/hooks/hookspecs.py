"""Every hook, in the order of a run. Each docstring states when the hook runs and what it may do.

An implementation names only the arguments that it uses. The hooks `around_*` return a middleware
(see `api/middleware.py`). The middleware of the first plugin is the outermost. For a hook with
`firstresult`, the core uses the first result that is not None. The core's own implementation runs
last. All other hooks run on every plugin.

A jump is a predicted update. The guard checks the loss after a jump, and accepts or undoes it.
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


# --- assembly: each hook runs once, in this order, but `build_data` last --------------------------


@hookspec(firstresult=True)
def build_model(spec: ModelSpec) -> nn.Module | Task | None:
    """Build the model that `[model]` names, if the run is created from a config.

    The manifest's `schemes` lists the schemes that the plugin builds. Return a
    `Task(module, loss_fn)`, or a module whose loss is `model(**batch).loss`.
    """


@hookspec(firstresult=True)
def build_data(spec: DataSpec) -> Data | None:
    """Build the batches that `[data]` names. Runs after `on_run_start`."""


@hookspec
def register_kernels(kernels: KernelScope) -> None:
    """Add implementations of ops with `kernels.add`, or select some with `kernels.use`.

    Runs after `build_model`. The core undoes the changes at the end of the run. `neaptide
    kernels` also calls this hook: without a run, on a plugin with default settings.
    """


@hookspec
def convert_model(model: nn.Module) -> None:
    """Change the model in place before the optimizer is built. Undo the change in `on_run_end`."""


@hookspec(firstresult=True)
def configure_optimizer(
    model: nn.Module, name: str, lr: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer | None:
    """Build the optimizer that `[optimizer]` names.

    The core's implementation builds classes of torch.optim, and classes named as `module:Class`.
    """


@hookspec(firstresult=True)
def provide_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer, run: Run
) -> ParameterStore | None:
    """Provide the store of weights, gradients and optimizer state.

    The core's store leaves each tensor on its device. If a plugin claims `device.placement`, the
    core does not move the model. The plugin must move the parts of the model to `run.device`.
    """


# --- around: each hook returns a middleware or None; it runs once, after `on_run_start` -----------


@hookspec
def around_train_step(run: Run) -> middleware.AroundTrainStep | None:
    """Wrap one ordinary step: all micro-batches, backwards and the update, but no jump."""


@hookspec
def around_forward(run: Run) -> middleware.AroundForward | None:
    """Wrap each call of model and loss: in training, in the guard's check, in evaluation."""


@hookspec
def around_backward(run: Run) -> middleware.AroundBackward | None:
    """Wrap each backward. If you scale the loss, unscale gradients in `around_optimizer_step`."""


@hookspec
def around_optimizer_step(run: Run) -> middleware.AroundOptimizerStep | None:
    """Wrap the update, after the last backward of a step."""


@hookspec
def around_predict(run: Run) -> middleware.AroundPredict | None:
    """Wrap a Predict step. Pass a smaller `horizon` for a shorter jump; return None for no jump."""


@hookspec
def around_propose(run: Run) -> middleware.AroundPropose | None:
    """Wrap `propose_update`. The middleware may return another update, or None for no jump."""


@hookspec
def around_correct(run: Run) -> middleware.AroundCorrect | None:
    """Wrap an ordinary step of the Correct phase, inside `around_train_step`."""


@hookspec
def around_evaluate(run: Run) -> middleware.AroundEvaluate | None:
    """Wrap an evaluation."""


@hookspec
def around_save(run: Run) -> middleware.AroundSave | None:
    """Wrap the writing of a checkpoint."""


# --- run ----------------------------------------------------------------------------------------


@hookspec
def on_run_start(run: Run, model: nn.Module, store: ParameterStore, probe: Probe) -> None:
    """Run after the model, the optimizer and the store are built, before the first step.

    A checkpoint is loaded later. `probe(batch)` returns the mean loss of the present weights as a
    float. A plugin may store the function `probe` and call it during the run.
    """


@hookspec
def on_run_end(run: Run, error: BaseException | None) -> None:
    """Undo your changes. Runs once on every plugin, in reverse order, even if another raises."""


# --- phase --------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def select_phase(history: History, schedule: PhaseSchedule) -> Phase | None:
    """Choose the phase of the next step. The core's implementation returns `schedule.due()`."""


@hookspec(firstresult=True)
def propose_update(store: ParameterStore, history: History, horizon: int) -> Update | None:
    """Return a predicted update that replaces at most `horizon` ordinary updates, or None.

    Runs in a Predict step. The core applies the returned update. If this hook itself changes
    weights, the core raises PluginError.
    """


@hookspec(firstresult=True)
def forecast(history: History, horizon: int) -> Forecast | None:
    """Return a forecast of the loss after `horizon` updates, or None. Runs before `propose_update`.

    The manifest must claim `dynamics`. If the forecast's confidence is below
    `phases.predict.confidence`, no update is proposed.
    """


@hookspec(firstresult=True)
def plan_micro_batches(batch: Any) -> Sequence[Any] | None:
    """Split the batch of a step into micro-batches, in order."""


@hookspec
def on_phase_enter(phase: Phase, previous: Phase | None, step: int) -> None:
    """Run when a phase begins; `previous` is None in the first step after a start or resume."""


@hookspec
def on_phase_exit(phase: Phase, following: Phase | None, step: int) -> None:
    """Run when a phase ends; `following` is None at the run's end and before a checkpoint load."""


# --- notify: each hook observes and returns None --------------------------------------------------


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
    """Run for each update and each accepted jump. Each record is a row of steps.csv.

    The values of a record are on the host. Therefore the hook gets the record of an update during
    the next step, or at the end of the run. The hook also runs if there is no run directory.
    """


@hookspec
def on_metrics(step: int, phase: Phase, metrics: Mapping[str, float]) -> None:
    """Run for each line of metrics.jsonl: `lr` and the plugins' metrics, or `val_loss`."""


# --- account ----------------------------------------------------------------------------------


@hookspec
def estimate_memory(ledger: Ledger, phase: Phase) -> Ledger:
    """Return a copy of `ledger`, the memory estimate of `phase`, with this plugin's changes.

    The next plugin gets the returned ledger.
    """


@hookspec
def collect_metrics(step: int, phase: Phase) -> Mapping[str, float]:
    """Return numbers for metrics.jsonl, at every phase change and every `run.log_every` updates.

    Runs only if there is a run directory or a plugin implements `on_metrics`.
    """


# --- doctor: called outside of a run --------------------------------------------------------------


@hookspec
def diagnose() -> Iterable[Finding]:
    """Check the machine for `neaptide doctor`: the plugin's requirements, and any problems.

    Runs on every installed plugin, with its default config and without a training run.
    """
