"""Watches a run: what it holds after each step, and what must leave no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.api.steps import STOP, Outcome
from neaptide.errors import ConfigError
from neaptide_toolkit.testing.parting import Parting, partings

from .state import batch_of, digested, gradients_of, kept, random_state, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from neaptide import HybridTrainer, NeaptideError

    from .state import Value


@attrs.frozen
class Wish:
    """What to note of a run.

    Attributes:
        keep: steps whose tensors are copied; of other steps there are digests.
        keep_traces: whether what must leave no trace is compared by copies, too.
        until: the step at which the run ends; None: at its own end.
        whole: whether the state of the loop and of plugins is noted.
        refuse: whether every jump is refused.
        dropless: whether the model's dropout modules drop nothing.
        bare: whether nothing is noted, and the run is as fast as without a watch.
        saves: whether checkpoints are written.
    """

    keep: frozenset[int] = frozenset()
    keep_traces: bool = False
    until: int | None = None
    whole: bool = False
    refuse: bool = False
    dropless: bool = False
    bare: bool = False
    saves: bool = False


@attrs.frozen
class Trace:
    """A difference between before and after something that must change nothing."""

    kind: str
    """`evaluation`, `save` or `jump`."""
    step: int
    partings: tuple[Parting, ...]


@attrs.define(eq=False)
class Watched:
    """What was noted of a run.

    Attributes:
        moments: values by name, by the number of batches; 0 is the state before the first step.
        saved: the state when a checkpoint was written, by step.
        loaded: the state after a checkpoint was loaded.
        traces: left by what must leave none.
        jumps: number of jumps that were tried.
        end: weights and buffers of the model after the run, by every name.
        error: the error that ended the run, in one line.
        removed: plugins that were removed because they raised an error.
        culprit: the plugin whose hook raised it, if any.
        draws: whether a first step drew random numbers, in a run without dropout.
        refusal: the error, if it is Neaptide's own and came before the first step.
        races: as the simulated GPU tells them.
        checkpoints: the directories of checkpoints that were written, by step.
        parameters: elements of all weights.
        device: where it ran.
    """

    moments: dict[int, dict[str, Value]] = attrs.field(factory=dict)
    saved: dict[int, dict[str, Value]] = attrs.field(factory=dict)
    loaded: dict[str, Value] | None = None
    traces: list[Trace] = attrs.field(factory=list)
    jumps: int = 0
    end: dict[str, Value] = attrs.field(factory=dict)
    error: str | None = None
    culprit: str | None = None
    draws: bool = False
    refusal: NeaptideError | None = None
    removed: tuple[str, ...] = ()
    races: tuple[str, ...] = ()
    checkpoints: dict[int, Path] = attrs.field(factory=dict)
    parameters: int = 0
    device: str = ""


class Watch:
    """Replaces methods of one trainer by methods that take notes and then do the same."""

    def __init__(self, trainer: HybridTrainer, wish: Wish, notes: Watched, middle: int) -> None:
        self._trainer, self._wish, self.notes = trainer, wish, notes
        self._session: Any = trainer._session  # noqa: SLF001 - a trainer has no public view of it
        self._middle = middle
        self._gradients: dict[str, Value] = {}
        self._jumped: dict[str, Value] = {}
        target: Any = trainer
        self._step, self._evaluate = target.step, target.evaluate
        self._save, self._load = target.save, target.load
        self._predict = self._session.loop._predict_step  # noqa: SLF001 - as above
        self._probe = self._session.loop.probe
        store: Any = self._session.store
        self._update, self._norm = store.step, store.gradient_norm
        store.step, store.gradient_norm = self.update, self.norm
        target.step, target.evaluate = self.step, self.evaluate
        target.save, target.load = self.save, self.load
        loop: Any = self._session.loop
        loop._predict_step = self.predict  # noqa: SLF001 - as above
        if wish.refuse:
            loop.probe = self.refusing
        self._probes = 0
        self._evaluated = False

    @property
    def _batch(self) -> int:
        return int(self._trainer.state.batches)

    def _value_of(self, step: int) -> Callable[[Any], Value]:
        return kept if step in self._wish.keep else digested

    def step(self, batch: Any, **more: Any) -> Any:
        """Train on a batch, and note all state."""
        if not self.notes.moments:
            start = self._batch
            self.notes.moments[start] = self._state(start)
        self._gradients, self._jumped = {}, {}
        random = random_state() if self._wish.dropless and len(self.notes.moments) == 1 else None
        result = self._step(batch, **more)
        if random is not None:
            self.notes.draws = random != random_state()
        if result.outcome is Outcome.DEFERRED:
            msg = (
                "verify compares updates of one batch, and here several batches make one; leave "
                "out the plugin that defers updates, or set its across_steps = false"
            )
            raise ConfigError(msg)
        now = self._batch
        value_of = self._value_of(now)
        noted = {**batch_of(batch, value_of), **self._jumped, "loss": float(result.loss)}
        noted |= self._gradients
        self.notes.moments[now] = {**noted, **self._state(now)}
        if now == self._wish.until:
            self._trainer.run.stash.set(STOP, "what was asked for is known")
        elif now == self._middle and not self._evaluated:
            self.evaluate([batch])
        return result

    def _state(self, step: int) -> dict[str, Value]:
        return state_of(self._session, self._value_of(step), whole=self._wish.whole)

    def norm(self) -> Any:
        """Note the gradients of a step before they are clipped."""
        if not self._gradients:
            self._gradients = self._seen("gradients")
        return self._norm()

    def update(self) -> None:
        """Note the gradients, as the optimizer is given them."""
        if not self._gradients:
            self._gradients = self._seen("gradients")
        elif self._trainer.config.train.clip_norm is not None:
            self._gradients |= self._seen("clipped")
        self._update()

    def _seen(self, kind: str) -> dict[str, Value]:
        return gradients_of(self._session, kind, self._value_of(self._batch + 1))

    def evaluate(self, batches: Any, **more: Any) -> float:
        """Evaluate; nothing may change. Then note the loss of the trained weights."""
        self._evaluated = True
        batches = list(batches)
        found: float = self._untouched("evaluation", self._evaluate, batches, **more)
        if self._batch in self.notes.moments:
            loss = self._session.loop.evaluate(batches, plain=True)
            self.notes.moments[self._batch]["evaluation"] = float(loss)
        return found

    def save(self, directory: Path) -> Path:
        """Save in the middle, if wished; nothing may change."""
        if not self._wish.saves or self.notes.saved or self._trainer.state.step < self._middle:
            return directory
        self.notes.saved[self._batch] = state_of(self._session, self._quietly)
        path: Path = self._untouched("save", self._save, directory)
        self.notes.checkpoints[self._batch] = path
        return path

    def load(self, directory: Any, **more: Any) -> None:
        """Load, and note what was loaded."""
        self._load(directory, **more)
        self.notes.loaded = state_of(self._session, self._quietly)

    def predict(self, **arguments: Any) -> Any:
        """Try a jump; a refused one may change nothing."""
        self._probes = 0
        before = state_of(self._session, self._quietly)
        jump = self._predict(**arguments)
        self.notes.jumps += 1
        after = state_of(self._session, self._value_of(self._batch + 1)).items()
        weights = "weights/"
        self._jumped = {
            f"jump/{name.removeprefix(weights)}": value
            for name, value in after
            if name.startswith(weights)
        }
        if jump is None or not jump.accepted:
            self._compare("jump", before)
        return jump

    def refusing(self, batch: Any) -> float:
        """Return the loss, and after a jump infinity, so that it is refused."""
        loss = float(self._probe(batch))
        self._probes += 1
        return loss if self._probes == 1 else float("inf")

    @property
    def _quietly(self) -> Callable[[Any], Value]:
        return kept if self._wish.keep_traces else digested

    def _untouched(self, kind: str, action: Callable[..., Any], *given: Any, **more: Any) -> Any:
        before = {**state_of(self._session, self._quietly), **_modes(self._trainer)}
        result = action(*given, **more)
        self._compare(kind, before)
        return result

    def _compare(self, kind: str, before: Mapping[str, Value]) -> None:
        after = state_of(self._session, self._quietly)
        if any(name.startswith("mode/") for name in before):
            after |= _modes(self._trainer)
        found = partings(before, after)
        if found:
            self.notes.traces.append(Trace(kind, self._batch, tuple(found)))


def _modes(trainer: HybridTrainer) -> dict[str, Value]:
    return {
        f"mode/{name}": f"training {module.training}"
        for name, module in trainer.model.named_modules()
    }
