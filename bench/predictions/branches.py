"""Trains a run. At each of six updates, the run continues in several branches.

One branch has no jump, and the other branches start with a jump (a predicted change of the
weights). Each jump is judged by the method of `delayed-verdict`.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import HybridTrainer, Plugin, PluginSpec, Update, hookimpl
from neaptide.run import assembly
from neaptide_plugins.delayed_verdict.trial import TrialWeights, losses_of
from predictions.traces import config_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide import ParameterStore, Span

KINDS = ("drift", "noise", "reverse")
HALF = 50
"""Number of updates in each half of the window over which a drift is measured."""
SCALE = 0.5
AFTER, AVERAGE, BATCHES = 50, 25, 4
FRESH = 64
"""Number of batches that measure the true gain. They are never used for training."""
POINTS = (250, 450, 650, 850, 1050, 1250)
"""Updates at which the run branches."""


@attrs.define(eq=False)
class Proposer(Plugin[Any]):
    """Proposes the weights' drift, noise of the same norm per tensor, or the reversed drift."""

    kind: str = "drift"
    newest: dict[str, list[torch.Tensor]] = attrs.field(init=False, factory=dict)
    kept: TrialWeights = attrs.field(init=False)
    seen: int = 0
    """Number of updates since the branch."""

    @hookimpl
    def on_run_start(self, store: ParameterStore) -> None:
        """Register a callback that stores the newest weights, and the mean weights of a branch."""
        self.kept = TrialWeights(torch.device("cpu"), torch.float32)
        self.kept.reserve(span for span in store.spans() if span.trainable)
        store.on_update(self._follow)

    def _follow(self, span: Span, weight: torch.Tensor, delta: torch.Tensor | None) -> None:
        if delta is not None:
            self.kept.record(span.name, delta)
            return
        held = self.newest.setdefault(span.name, [])
        held.append(weight.clone())
        del held[: -2 * HALF]
        if AFTER - AVERAGE <= self.seen < AFTER:
            self.kept.average(span.name, weight, self.seen - (AFTER - AVERAGE) + 1)

    @hookimpl
    def propose_update(self) -> Update:
        """Return the proposed change of the weights."""
        generator = torch.Generator().manual_seed(0)

        def delta(span: Span) -> torch.Tensor:
            held = torch.stack(self.newest[span.name])
            drift = SCALE * (held[HALF:].mean(0) - held[:HALF].mean(0))
            if self.kind == "noise":
                noise = torch.randn(drift.shape, generator=generator.manual_seed(drift.numel()))
                return noise * (drift.norm() / noise.norm())
            return -drift if self.kind == "reverse" else drift

        return Update(round(SCALE * HALF), delta)


PROPOSER = PluginSpec(
    name="proposer",
    load="predictions.branches:Proposer",
    summary="Proposes a given change.",
    claims={"predictor"},
    numerics="changes-training",
)


@attrs.frozen
class Judged:
    """One jump: its true gain, and the losses from which the verdict is computed."""

    update: int
    kind: str
    truth: list[float]
    """One number per fresh batch: the loss of the mean weights without the jump, minus the loss of
    the mean weights with the jump."""
    losses: list[list[float]]
    """One list per batch: the losses of the mean weights m, of m - jump, and of m + jump."""


def judged(task: str, seed: int) -> Iterator[Judged]:
    """Train one run. Yield every kind of jump at each update in `POINTS`."""
    phases = {
        "warmup": {"steps": 1},
        "full": {"steps": 1_000_000},
        "predict": {"max_horizon": HALF, "rise": 1e6},
    }
    config = {**config_of(task, seed), "phases": phases}
    trainer = HybridTrainer.from_config(config, plugins=[PROPOSER])
    with trainer, tempfile.TemporaryDirectory() as folder:
        data = assembly.build_data(trainer.config, trainer.hooks)
        batches = list(itertools.islice(iter(data.train), POINTS[-1] + AFTER + BATCHES + FRESH))
        proposer: Any = trainer.hooks.plugins[PROPOSER.name]
        done = 0
        for point in POINTS:
            for batch in batches[done:point]:
                trainer.step(batch, phase="full")
            done = point
            at = trainer.save(Path(folder) / str(point))
            newest = {name: list(held) for name, held in proposer.newest.items()}
            following = batches[point : point + AFTER + BATCHES]
            unjumped: list[float] = []
            for kind in ("none", *KINDS):
                trainer.load(at)
                proposer.newest = {name: list(held) for name, held in newest.items()}
                proposer.kind, proposer.seen = kind, 0
                for batch in following[:AFTER]:
                    jumps = proposer.seen == 0 and kind != "none"
                    trainer.step(batch, phase="predict" if jumps else "full")
                    proposer.seen += 1
                mean = losses(trainer, proposer.kept, batches[-FRESH:], "undone")[0]
                if kind == "none":
                    unjumped = mean
                    continue
                truth = [before - after for before, after in zip(unjumped, mean, strict=True)]
                of_moved = losses(trainer, proposer.kept, following[AFTER:], "mirrored")
                yield Judged(
                    point, kind, truth, [list(each) for each in zip(*of_moved, strict=True)]
                )
            trainer.load(at)
            proposer.newest, proposer.seen = newest, AFTER


def losses(
    trainer: HybridTrainer, kept: TrialWeights, batches: Sequence[Any], contrast: str
) -> list[list[float]]:
    """Return a list of losses, one per batch, for each set of weights that `losses_of` tests."""
    found: list[list[float]] = []

    def probe() -> float:
        found.append([trainer.evaluate([batch]) for batch in batches])
        return 0.0

    losses_of(trainer.store, kept, probe, contrast)
    return found
