"""Runs of a stack, with some of its plugins, through the real trainer."""

from __future__ import annotations

import gc
import math
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch

from neaptide import HybridTrainer
from neaptide.api import rng
from neaptide.errors import NeaptideError, is_out_of_memory
from neaptide.hooks.middleware import culprit
from neaptide.io.logging import said
from neaptide.run import assembly
from neaptide.run.signals import Interrupted
from neaptide_toolkit.testing.races import races_in

from .dropless import dropless
from .state import digested, kept
from .watching import Watch, Watched, Wish

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec

    from .stacks import Stack


class TrainerMaker(Protocol):
    """Makes a new trainer and its data, the same each time."""

    def __call__(self, config: RunConfig, specs: list[PluginSpec]) -> tuple[HybridTrainer, Any]:
        """Return a trainer that was not used, and a `Data` or batches."""


def from_config(config: RunConfig, specs: list[PluginSpec]) -> tuple[HybridTrainer, Any]:
    """Make the model, the data and the optimizer that a configuration names."""
    trainer = HybridTrainer.from_config(config, plugins=specs)
    return trainer, assembly.build_data(trainer.config, trainer.hooks)


_LARGE = 1_000_000
"""Parameters whose memory is worth a search for circles."""
_NOTED_ANYWAY = (Wish(), Wish(saves=True))


@attrs.frozen(eq=False)
class Runs:
    """Runs a stack with some of its plugins; remembers what was noted of each run."""

    stack: Stack
    make: TrainerMaker = from_config
    _known: dict[Any, Watched] = attrs.field(factory=dict, init=False)
    _count: list[None] = attrs.field(factory=list, init=False)

    @property
    def made(self) -> int:
        """How many runs were made."""
        return len(self._count)

    @property
    def steps(self) -> int:
        """Updates of a whole run."""
        return self.stack.config.train.steps

    def of(
        self,
        names: Iterable[str],
        wish: Wish = Wish(),  # noqa: B008 - frozen
        settings: Mapping[str, Any] | None = None,
    ) -> Watched:
        """Return what is noted of a run with these plugins, and of what they require.

        An error of the run is noted; lack of memory is raised.
        """
        chosen = self.stack.closed(names)
        if not settings and wish in _NOTED_ANYWAY and chosen == frozenset(self.stack.specs):
            return self.resumed(chosen)[0]  # which has all that is wished, and more
        key = chosen, wish, tuple(sorted((settings or {}).items(), key=lambda item: item[0]))
        if not settings and key in self._known:
            return self._known[key]
        with tempfile.TemporaryDirectory() as folder:
            notes = self._run(chosen, wish, Path(folder), settings)
        if not (settings or wish.keep or wish.keep_traces):
            self._known[key] = notes
        return notes

    def resumed(
        self,
        names: Iterable[str],
        settings: Mapping[str, Any] | None = None,
        *,
        keep: int | None = None,
    ) -> tuple[Watched, Watched]:
        """Return a run that writes a checkpoint, and one that goes on from it."""
        wish = Wish(
            whole=True,
            saves=True,
            keep=frozenset() if keep is None else frozenset({keep}),
            keep_traces=keep is not None,
        )
        chosen = self.stack.closed(names)
        key = chosen, wish, "resumed"
        if not settings and key in self._known:
            return self._known[chosen, wish], self._known[key]
        with tempfile.TemporaryDirectory() as folder:
            first = self._run(chosen, wish, Path(folder) / "first", settings)
            again = Watched()
            saved = first.checkpoints.get(max(1, self.steps // 2))
            if saved is None and first.error is None:
                first.error = "no checkpoint was written"
            if first.error is None:
                again = self._run(
                    chosen,
                    attrs.evolve(wish, saves=False),
                    Path(folder) / "second",
                    settings,
                    resume=saved,
                )
        if keep is None and not settings:
            self._known[chosen, wish], self._known[key] = first, again
        return first, again

    def _run(
        self,
        names: frozenset[str],
        wish: Wish,
        folder: Path,
        settings: Mapping[str, Any] | None,
        resume: Path | None = None,
    ) -> Watched:
        self._count.append(None)
        notes = Watched()
        threads = torch.get_num_threads()
        with rng.preserved():
            try:
                config, ordered = self.stack.with_only(names, settings)
                config = attrs.evolve(config, run=attrs.evolve(config.run, dir=str(folder)))

                def train() -> None:
                    self._trained(config, ordered, wish, notes, resume)

                if wish.bare:  # notes wait for the device, and hide races
                    notes.races = tuple(races_in(train))
                else:
                    train()
            except Interrupted:
                raise  # a signal is nobody's fault
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                notes.error, notes.culprit = said(error), culprit(error)
                if isinstance(error, NeaptideError) and len(notes.moments) <= 1:
                    notes.refusal = error
            finally:
                torch.set_num_threads(threads)
                if notes.parameters > _LARGE:
                    gc.collect()  # a module and its hooks are a circle
        return notes

    def _trained(
        self,
        config: RunConfig,
        ordered: list[PluginSpec],
        wish: Wish,
        notes: Watched,
        resume: Path | None,
    ) -> None:
        rng.seed_all(config.seed)
        trainer, data = self.make(config, ordered)
        with trainer, dropless(trainer.model) if wish.dropless else nullcontext():
            if wish.bare:
                trainer.save = lambda directory: directory  # type: ignore[method-assign, assignment, return-value]
            else:
                Watch(trainer, wish, notes, max(1, self.steps // 2))
            trainer.fit(data, resume=resume)
            model = trainer.model
            notes.parameters = sum(math.prod(span.shape) for span in trainer.store.spans())
            notes.device = str(trainer.run.device)
            quarantined = trainer.hooks._quarantine  # noqa: SLF001 - a trainer does not tell it
            notes.removed = tuple(sorted(quarantined))
        value_of = kept if wish.keep_traces else digested
        notes.end = {
            f"model/{name}": value_of(value)
            for name, value in model.state_dict().items()
            if isinstance(value, torch.Tensor)
        }
