"""HybridTrainer: assembles a run around a model and steps, fits, evaluates, saves and loads it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from neaptide.api import rng
from neaptide.api.task import Data, Task
from neaptide.errors import suggest
from neaptide.hooks.enabling import configured
from neaptide.text import brief, called

from . import assembly
from .arguments import check_resume, check_trained, phase_named
from .defaults import try_optimizer
from .displays import display_of
from .fit import Fit
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    import torch
    from torch import nn

    from neaptide.api.memory import Ledger
    from neaptide.api.steps import StepResult
    from neaptide.api.task import LossFn
    from neaptide.config import RunConfig
    from neaptide.hooks.manager import HookManager
    from neaptide.plugin import PluginSpec

    from .summary import Summary


class HybridTrainer:
    """Trains an nn.Module through Warmup, Full, Predict and Correct.

    In a user's own loop::

        with HybridTrainer(model, optimizer, loss_fn=loss_fn, plugins=["ema"]) as trainer:
            for batch in loader:
                result = trainer.step(batch)

    Args:
        model: any module; it stays where it is.
        optimizer: over the model's parameters; left out, `[optimizer]` of the config builds one.
        loss_fn: `loss_fn(model, batch)` returns a 0-dim mean or a `Loss(sum, count)`; left out,
            `model(**batch).loss`.
        config: a TOML, YAML or JSON file, a mapping or a RunConfig. Without `run.dir` nothing is
            written.
        plugins: names of installed plugins, or manifests, enabled beside those of the config.
        stateful: further objects with `state_dict` and `load_state_dict` to keep in checkpoints,
            such as an LR scheduler.

    Raises:
        ConfigError: for everything wrong with config and plugins, before anything is changed.
        TypeError: for an argument of another kind.
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
        self._take(
            Session(
                full,
                ordered,
                lambda _: Task(model, loss_fn),
                optimizer=optimizer,
                stateful=stateful,
            )
        )

    @classmethod
    def from_config(
        cls,
        config: RunConfig | Mapping[str, Any] | str | Path,
        *,
        plugins: Iterable[str | PluginSpec] = (),
        origins: Mapping[str, str] | None = None,
    ) -> Self:
        """Build the model and optimizer the config names, on the device it names.

        `origins` says where each setting came from, by dotted path; the run directory keeps it.
        """
        full, ordered = configured(config, plugins)
        device = assembly.choose_device(full.train.device, None)
        rng.seed_all(full.seed)

        def build(hooks: HookManager) -> Task:
            if hooks.left_to_core("configure_optimizer"):
                section = full.optimizer
                try_optimizer(section.name, section.lr, section.options)
            task = assembly.build_task(full, hooks)
            if not assembly.is_placed(hooks):
                task.module.to(device)
            return task

        trainer = cls.__new__(cls)
        trainer._take(Session(full, ordered, build, origins=origins))  # noqa: SLF001 - another constructor
        return trainer

    def _take(self, session: Session) -> None:
        self._session = session
        self.config, self.hooks, self.run = session.config, session.hooks, session.run
        self.model, self.store, self.state = session.model, session.store, session.state

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, the user's own or the one the config built."""
        optimizer: torch.optim.Optimizer = self.store.optimizer
        return optimizer

    # -- training -------------------------------------------------------------------------------

    def step(self, batch: Any, *, phase: str | None = None) -> StepResult:
        """Train on one batch, after a jump where one is due.

        Args:
            batch: what `loss_fn` takes; its tensors have the samples along dim 0.
            phase: force `"full"`, `"correct"`, … for this step instead of asking the schedule;
                with `"predict"` a jump is tried first, then the batch is trained on in the phase
                that is due.

        Raises:
            DivergedError: after `train.max_skipped` non-finite updates in a row.
            Exception: what the model, the loss or a plugin raises, with a note naming the plugin.
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
            data: a `Data`, or batches to train on; iterated again when they end.
            validation: batches to evaluate on, where `data` has none.
            resume: `"auto"` goes on from the newest valid checkpoint of the run directory, if
                there is one; a path names a checkpoint.
            allow_changes: resume although config or plugins differ.
            observe: called with each StepResult and the TrainState, for a progress display. Its
                method `evaluated(step, loss)`, if it has one, is told of each evaluation. Left
                out, a notebook shows a bar unless `run.progress` is `"quiet"`.

        Returns:
            What is also written to summary.json; print it for a table.

        Raises:
            Interrupted: after a SIGINT or SIGTERM, once everything is saved.
            DataError: the data is empty, used up, or raises; what was trained is saved.
        """
        check_resume(resume)
        source = data if isinstance(data, Data) else Data(data, validation)
        style, device = self.config.run.progress, self.run.device
        shown = display_of(self.config, style, device, None) if observe is None else None
        with shown or nullcontext(observe) as observer:
            fit = Fit(self._session, self, source, observer)
            return fit.run(resume, allow_changes=allow_changes)

    def evaluate(self, batches: Iterable[Any], *, plain: bool = False) -> float:
        """Return the mean loss over `batches`, nan where there are none.

        Model and random state are left untouched. `plain` evaluates the weights as they are,
        whatever plugins would put in their place, such as an average.
        """
        return self._session.loop.evaluate(batches, plain=plain)

    # -- state ----------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> Path:
        """Write a checkpoint into `directory`, atomically; an older one there is replaced.

        Raises CheckpointError, leaving the older one intact.
        """
        return self._session.save(Path(directory))

    def load(self, directory: str | Path, *, allow_changes: bool = False) -> None:
        """Take a checkpoint back; training goes on bit for bit as it would have.

        Raises CheckpointError before anything is changed when it is damaged, and the subclass
        WrongCheckpointError when it is not there or of another run.
        """
        self._session.load(Path(directory), allow_changes=allow_changes)

    def digest(self) -> str:
        """Return the sha256 over everything a result may depend on."""
        return self._session.digest()

    def estimate_memory(self, phase: str = "full") -> Ledger:
        """Return what core and plugins expect to hold in `phase`; print it for a table.

        Activations depend on the batch and are left out.
        """
        chosen = phase_named(phase)
        return self.hooks.estimate_memory(assembly.base_ledger(self.store, chosen), chosen)

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
        """End the run: the last row is written, plugins undo what they patched. Idempotent."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close, telling the plugins of the error that ends the run."""
        self._session.error = error or self._session.error
        self.close()
