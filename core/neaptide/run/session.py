"""One assembled run: its plugins, store, loop and recorder, from assembly to teardown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide.api.kernels import KERNEL_GROUP
from neaptide.api.parameters import ParameterStore
from neaptide.api.task import Run
from neaptide.errors import CheckpointError, described
from neaptide.io.logging import run_logger, said
from neaptide.loop.state import TrainState
from neaptide.loop.step import Loop
from neaptide.plugin import sole

from . import assembly, saving
from .arguments import Members, check_optimizer, phase_named
from .recorder import Recorder
from .signals import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from neaptide.api.kernels import KernelScope
    from neaptide.api.steps import StepResult
    from neaptide.api.task import Task
    from neaptide.config import RunConfig
    from neaptide.hooks.manager import HookManager
    from neaptide.plugin import PluginSpec


METER_GROUP = "neaptide.meters"
"""The group of the entry point that measures memory: `meter(device)`."""


class Session:
    """One run, used by `HybridTrainer` and `Fit`. If the assembly fails, it is undone.

    `ordered` are the manifests of the enabled plugins in resolved order. `build` returns the model
    and the loss function; it is called after the plugins are created. Without `optimizer`, that of
    the config is built. The converted model moves to `device`. `HybridTrainer` documents the rest.
    """

    def __init__(
        self,
        config: RunConfig,
        ordered: Sequence[PluginSpec],
        build: Callable[[HookManager], Task],
        *,
        optimizer: torch.optim.Optimizer | None = None,
        device: torch.device | None = None,
        stateful: Mapping[str, Any] | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.recorder = Recorder(config, origins)
        self.data_state: Any = None
        """The position in the data, as saved in checkpoints."""
        self.error: BaseException | None = None
        """The error that ends the run. The last step or the user's code raised this error."""
        self._closed = self._begun = self._loaded = self._stepping = False
        self._kernels: KernelScope | None = None
        if config.train.deterministic:
            _begin_deterministic()
        if config.train.threads is not None:
            torch.set_num_threads(config.train.threads)
        try:
            self._assemble(ordered, build, optimizer, device, stateful or {})
        except BaseException as error:
            self._tear_down(error)
            raise

    def _assemble(
        self,
        ordered: Sequence[PluginSpec],
        build: Callable[[HookManager], Task],
        optimizer: torch.optim.Optimizer | None,
        target: torch.device | None,
        stateful: Mapping[str, Any],
    ) -> None:
        config, log = self.config, run_logger(self.recorder.event)
        self.hooks = hooks = assembly.create_plugins(config, ordered, log)
        task = build(hooks)
        self.model = task.module
        placed = assembly.is_placed(hooks)
        device = target or assembly.choose_device(
            config.train.device if placed else "auto", None if placed else self.model
        )
        self.state = TrainState(assembly.schedule_of(config, ordered))
        # From here on plugins may patch the model, so `on_run_end` is called even after an error.
        self.run = Run(config, self.recorder.directory, device, log, timeline=hooks.timeline)
        if hooks.implements("register_kernels"):
            self._kernels = sole(KERNEL_GROUP)()
            hooks.notify("register_kernels", kernels=self._kernels)
        hooks.notify("convert_model", model=self.model)
        if target and not placed:
            self.model.to(target)
        optimizer = optimizer or assembly.build_optimizer(config, self.model, hooks)
        check_optimizer(optimizer, self.model)
        self._members = Members(self.model, optimizer)
        self.store: ParameterStore = hooks.first(
            "provide_parameters",
            ParameterStore,
            model=self.model,
            optimizer=optimizer,
            run=self.run,
        )
        hooks.notify(
            "on_run_start", run=self.run, model=self.model, store=self.store, probe=self._probe
        )
        meter = sole(METER_GROUP)(device) if self.recorder.directory else None
        self.recorder.attach(hooks, meter)
        self.loop = Loop(
            self.model,
            sole(assembly.LOSS_GROUP)(task.loss_fn, log),
            self.store,
            hooks,
            self.run,
            self.state,
            meter and meter.sample,
            self.recorder.trained,
            self.recorder.phase_ends,
        )
        self._save = hooks.around("around_save", self._write, self.run)
        self._parts = saving.Parts(
            self.model, self.store, hooks, self.state, config, self.recorder, stateful
        )

    def _probe(self, batch: Any) -> float:
        return self.loop.probe(batch)

    def begin(self) -> None:
        """Prepare the run directory before the first step. Idempotent."""
        if self.state.half_loaded is not None:
            msg = f"the run is half loaded, from {self.state.half_loaded}: make a new trainer"
            raise CheckpointError(msg)
        if not (self._begun or self._closed):
            self._begun = True
            self.recorder.begin(self.state if self._loaded else None)
            for name, lost in self.recorder.lost.items():
                self.run.log.warning("records.lost", step=self.state.step, file=name, what=lost)

    def step(self, batch: Any, phase: str | None = None) -> StepResult:
        """Train on one batch; first try a jump if it is due. `phase` overrides the schedule."""
        if self._closed:
            msg = "this trainer is closed; make a new one"
            raise RuntimeError(msg)
        self._check_not_stepping("step")
        forced = None if phase is None else phase_named(phase)
        self.begin()
        if not self.model.training:
            self.model.train()
        self._members.check()
        self._stepping = True
        try:
            result = self.loop.step(batch, forced)
        except BaseException as error:
            self.error = error
            self.loop.abandon()
            raise
        finally:
            self._stepping = False
        self.error = None  # the user continued after the error of an earlier step
        self.recorder.stepped(result)
        return result

    def save(self, directory: Path) -> Path:
        """Write a checkpoint, inside the plugins' middleware `around_save`."""
        path: Path = self._save(directory=directory)
        return path

    def _write(self, *, directory: Path) -> Path:
        if self._loaded or self.state.half_loaded:
            self.begin()  # cuts the records back: the checkpoint has to know how long they are
        return saving.save(directory, self._parts, self.data_state)

    def load(self, directory: Path, *, allow_changes: bool) -> None:
        """Load a checkpoint."""
        self._check_not_stepping("load")
        self.data_state = saving.load(directory, self._parts, allow_changes=allow_changes)
        self._begun, self._loaded = False, True

    def digest(self) -> str:
        """Return the sha256 of all state on which results of the run may depend."""
        return saving.digest(self._parts, self.data_state)

    def close(self) -> None:
        """End the run; pass `self.error` (or None) to the hook `on_run_end`. Idempotent."""
        if not self._closed:
            self._check_not_stepping("close")
            try:
                self.loop.settle()
            except Exception as failed:
                if self.error is None:
                    self.error = failed
                    raise
                self.error.add_note(f"after this error: {described(failed)}")
            finally:
                self._tear_down(self.error)

    def _check_not_stepping(self, method: str) -> None:
        if self._stepping:
            msg = (
                f"trainer.{method} was called inside trainer.step, by a hook or loss_fn; call it "
                f"between steps"
            )
            raise RuntimeError(msg)

    def _tear_down(self, error: BaseException | None) -> None:
        self._closed = True
        errors: list[BaseException] = []
        if hasattr(self, "run"):
            alone = self._begun and not self.recorder.summed_up
            _log_end(self.run.log, self.state.step, error, closed=alone)
            if self.state.phase is not None:
                errors += self.hooks.leave_phase(self.state.phase, self.state.step)
            errors += self.hooks.on_run_end(self.run, error)
        if hasattr(self, "store"):
            try:
                self.store.close()
            except BaseException as failed:  # noqa: BLE001 - raised below
                errors.append(failed)
        if self._kernels is not None:
            self._kernels.close()
        self.recorder.close()
        if self.config.train.deterministic:
            _end_deterministic()
        _raise_teardown(errors, error)


_users: list[tuple[bool, bool]] = []
"""torch's deterministic mode and `warn_only` before the first session; one copy per session."""


def _begin_deterministic() -> None:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    _users.append(_users[0] if _users else (torch.are_deterministic_algorithms_enabled(), warns))
    torch.use_deterministic_algorithms(mode=True)


def _end_deterministic() -> None:
    mode, warn_only = _users.pop()
    if not _users:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def _log_end(log: Any, step: int, error: BaseException | None, *, closed: bool) -> None:
    """Log that the run failed or was closed. `Fit` logs the stop by a signal."""
    if error is None and closed:
        log.info("run.closed", step=step)
    elif error is not None and not isinstance(error, Interrupted):
        log.info("run.failed", step=step, error=said(error))


def _raise_teardown(errors: list[BaseException], error: BaseException | None) -> None:
    """Raise the errors of a teardown; if `error` ended the run, add them as notes to `error`."""
    if not errors:
        return
    msg = "plugins failed while the run ended"
    interrupts = [one for one in errors if not isinstance(one, Exception)]
    if interrupts:  # such as Ctrl-C, which must not be hidden in a group
        interrupts[0].add_note(f"{msg}: {errors}")
        raise interrupts[0]
    if error is None:
        raise BaseExceptionGroup(msg, errors)
    error.add_note(f"{msg}: {tuple(errors)}")
