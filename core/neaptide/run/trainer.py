"""`HybridTrainer` trains, evaluates, saves and loads a model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from neaptide.api import rng
from neaptide.api.task import Data, Task
from neaptide.errors import suggest
from neaptide.hooks.enabling import configured
from neaptide.plugin import sole
from neaptide.text import brief, called

from . import assembly
from .arguments import check_resume, check_trained, phase_named
from .defaults import OPTIMIZER_GROUP
from .displays import display_of
from .feed import moved
from .fit import Fit
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch import nn

    from neaptide.api.memory import Ledger
    from neaptide.api.steps import StepResult
    from neaptide.api.task import LossFn
    from neaptide.config import RunConfig
    from neaptide.hooks.manager import HookManager
    from neaptide.io.summary import Summary
    from neaptide.plugin import PluginSpec


class HybridTrainer:
    """Trains an nn.Module through Warmup, Full, Predict and Correct.

    In a user's own loop::

        with HybridTrainer(model, optimizer, loss_fn=loss_fn, plugins=["ema"]) as trainer:
            for batch in loader:
                result = trainer.step(batch)

    Args:
        model: any module; it stays on its device.
        optimizer: an optimizer of the model's parameters. If it is None, the trainer builds the
            optimizer that `[optimizer]` of the config names.
        loss_fn: `loss_fn(model, batch)` returns a 0-dim mean or a `Loss(sum, count)`. If it is
            None, the loss is `model(**batch).loss`.
        config: a TOML, YAML or JSON file, a mapping or a RunConfig. Without `run.dir` no file
            is written.
        plugins: names of installed plugins, or manifests; they are enabled in addition to the
            plugins of the config.
        stateful: other objects with `state_dict` and `load_state_dict`, such as an LR scheduler.
            Checkpoints include the state of these objects.

    Raises:
        ConfigError: the config or the plugins are wrong. The text lists all faults. The model and
            the optimizer are unchanged.
        TypeError: an argument has the wrong type.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        loss_fn: LossFn | None = None,
        config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        plugins: Iterable[str | PluginSpec] = (),
        stateful: Mapping[str, Any] | None = None,
    ) -> None:
        check_trained(model, optimizer, stateful)
        full, ordered = configured(config, plugins)
        full = sole(assembly.LENGTH_GROUP)(full, ordered, own_loop=True)
        self._given = sole(assembly.VERIFIER_GROUP)(full, ordered, model, optimizer, loss_fn)
        task = Task(model, loss_fn)
        self._take(Session(full, ordered, lambda _: task, optimizer=optimizer, stateful=stateful))

    @classmethod
    def from_config(
        cls,
        config: RunConfig | Mapping[str, Any] | str | Path,
        *,
        plugins: Iterable[str | PluginSpec] = (),
        origins: Mapping[str, str] | None = None,
    ) -> Self:
        """Build the model and the optimizer that the config names, on the device of the config.

        `origins` maps the dotted path of each setting to the source of this setting. The run
        directory stores `origins`.
        """
        full, ordered = configured(config, plugins)
        full = sole(assembly.LENGTH_GROUP)(full, ordered)
        device = assembly.choose_device(full.train.device, None)
        rng.seed_all(full.seed)

        def build(hooks: HookManager) -> Task:
            if hooks.left_to_core("configure_optimizer"):
                section = full.optimizer
                sole(OPTIMIZER_GROUP).check(section.name, section.lr, section.options)
            task = assembly.build_task(full, hooks)
            if device.type == "cpu":
                return task
            loss_fn = sole(assembly.LOSS_GROUP)(task.loss_fn, None)
            return Task(task.module, lambda model, batch: loss_fn(model, moved(batch, device)))

        trainer = cls.__new__(cls)
        trainer._given = sole(assembly.VERIFIER_GROUP)(full, ordered)  # noqa: SLF001 - another constructor
        trainer._take(Session(full, ordered, build, device=device, origins=origins))  # noqa: SLF001 - another constructor
        return trainer

    def _take(self, session: Session) -> None:
        self._session = session
        self.config, self.hooks, self.run = session.config, session.hooks, session.run
        self.model, self.store, self.state = session.model, session.store, session.state

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer: the user's, or the one that was built from the config."""
        optimizer: torch.optim.Optimizer = self.store.optimizer
        return optimizer

    # -- training -------------------------------------------------------------------------------

    def step(self, batch: Any, *, phase: str | None = None) -> StepResult:
        """Train on one batch. If a jump (a predicted update) is due, try the jump first.

        Args:
            batch: the batch for `loss_fn`; dim 0 of its first tensor is the batch dimension.
            phase: a phase for this step, such as `"full"`, instead of the phase that is due. With
                `"predict"` the trainer first tries a jump. Then it trains on the batch in the
                phase that is due.

        Raises:
            DivergedError: more than `train.max_skipped` updates in a row were not finite.
            Exception: any error of the model, the loss or a plugin; a note names the plugin.
        """
        return self._session.step(batch, phase)

    def fit(
        self,
        data: Data | Iterable[Any],
        *,
        validation: Iterable[Any] | None = None,
        resume: str | Path | None = None,
        allow_changes: bool = False,
        observe: Any = None,
    ) -> Summary:
        """Train until `train.steps` updates are made; evaluate, save and stop on signals.

        Args:
            data: a `Data`, or the batches to train on. After the last batch, iteration restarts.
            validation: the batches to evaluate on, if `data` is not a `Data`.
            resume: the path of a checkpoint to continue from. `"auto"` means the newest valid
                checkpoint of the run directory. Without a checkpoint, the run starts anew.
            allow_changes: resume even if the config or the plugins differ.
            observe: a function for a progress display, called with the StepResult and the
                TrainState after each step. If it has a method `evaluated(step, loss)`, the method
                is called after each evaluation. Without `observe`, a notebook shows a bar unless
                `run.progress` is `"quiet"`.

        Returns:
            The content of summary.json. `print` shows the summary as a table.

        Raises:
            Interrupted: a SIGINT or SIGTERM arrived; the run was saved.
            DataError: the data gave no batch or raised an error; new progress was saved.
        """
        check_resume(resume)
        source = data if isinstance(data, Data) else Data(data, validation)
        style, device = self.config.run.progress, self.run.device
        shown = display_of(self.config, style, device, None) if observe is None else None
        with shown or nullcontext(observe) as observer:
            fit = Fit(self._session, self, source, observer)
            return fit.run(resume, allow_changes=allow_changes)

    def evaluate(self, batches: Iterable[Any], *, plain: bool = False) -> float:
        """Return the mean loss over `batches`; nan if there are no batches.

        The model and the random state do not change. A plugin may replace the weights during an
        evaluation, for example by their average. `plain=True` evaluates the trained weights.
        """
        return self._session.loop.evaluate(batches, plain=plain)

    # -- state ----------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> Path:
        """Write the checkpoint `directory` atomically; replace an older checkpoint at this path.

        If the write fails, CheckpointError is raised and the older checkpoint stays intact.
        """
        return self._session.save(Path(directory))

    def load(self, directory: str | Path, *, allow_changes: bool = False) -> None:
        """Load a checkpoint; training then continues bit for bit as after the save.

        Raises CheckpointError if the checkpoint is damaged. Raises its subclass
        WrongCheckpointError if there is no checkpoint, or if the checkpoint belongs to another run.
        Both errors are raised before the run is changed.
        """
        self._session.load(Path(directory), allow_changes=allow_changes)

    def digest(self) -> str:
        """Return the sha256 of all state on which results of the run may depend."""
        return self._session.digest()

    def estimate_memory(self, phase: str = "full") -> Ledger:
        """Return the memory that the core and plugins expect to use in `phase`, in bytes.

        `print` shows the ledger as a table. Activations are not included, because they depend on
        the batch.
        """
        chosen = phase_named(phase)
        return self.hooks.estimate_memory(sole(assembly.LEDGER_GROUP)(self.store, chosen), chosen)

    def verify(self, batches: Iterable[Any] | None = None, **options: Any) -> Any:
        """Train copies of the model with all plugins and without, compare, and name the guilty.

        The first `steps=8` batches are used. The result tells what differs; see docs/verify.md.
        """
        return self._given.verify(self, batches, **options)

    def report(self, plugin: str) -> str | None:
        """Return the report of an enabled plugin, such as `"profiler"`."""
        if plugin not in self.hooks.plugins:
            known = self.hooks.plugins
            msg = f"no plugin {plugin!r} is enabled{suggest(plugin, known)}; there is {list(known)}"
            raise ValueError(msg)
        return self.hooks.plugins[plugin].report()

    def __repr__(self) -> str:
        what = f"{brief(self.model)} on {self.run.device}"
        step, names = f"step={self.state.step}", ", ".join(self.hooks.plugins)
        return called(self, what, brief(self.optimizer), step, f"plugins=[{names}]")

    # -- end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the run. Write the last row, and let plugins undo their patches. Idempotent."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the run. Pass the error of the `with` block to the hook `on_run_end`."""
        self._session.error = error or self._session.error
        self.close()
