"""Shrinks the proposed jump where it is as large as noise would make it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import Outcome, Plugin, hookimpl

from .shrink import ShrinkConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import (
        AroundPropose,
        AroundTrainStep,
        Ledger,
        ParameterStore,
        Phase,
        Run,
        Span,
        Update,
    )

_DECAY = 0.9
_MATRIX = 2


@attrs.define(eq=False)
class Shrink(Plugin[ShrinkConfig]):
    """Keeps the last sample of each weight, and the mean square of the changes between samples."""

    _last: dict[str, torch.Tensor] = attrs.field(init=False, factory=dict)
    _square: dict[str, torch.Tensor] = attrs.field(init=False, factory=dict)
    _updates: int = attrs.field(init=False, default=0)
    _samples: int = attrs.field(init=False, default=0)
    _fresh: bool = attrs.field(init=False, default=False)
    """True if ordinary updates alone lie between the last sample and the next one."""
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Register a callback for updates."""
        del run
        self._leave = store.on_updates(self._follow)

    @hookimpl
    def on_run_end(self) -> None:
        """Remove the callback."""
        if self._leave is not None:
            self._leave()

    def _follow(self, spans: list[Span], weights: list[Any], deltas: list[Any]) -> None:
        if deltas[0] is not None:
            self._fresh = False
            return
        if self._updates % self.config.every:
            return
        for span, weight in zip(spans, weights, strict=True):
            if not span.trainable:
                continue
            now = weight.detach().to("cpu", torch.float32, copy=True)
            if span.name not in self._square:
                self._square[span.name] = torch.zeros_like(now)
            elif self._fresh:
                change = now - self._last[span.name]
                self._square[span.name].lerp_(change.square_(), 1.0 - _DECAY)
            self._last[span.name] = now

    @hookimpl
    def around_train_step(self) -> AroundTrainStep:
        """Count updates."""

        def counted(following: Callable[..., Any], **arguments: Any) -> Any:
            sampled = self._updates % self.config.every == 0
            trained = following(**arguments)
            if trained.outcome is Outcome.APPLIED:
                self._samples += sampled and self._fresh
                self._fresh = self._fresh or sampled
                self._updates += 1
            return trained

        return counted

    @hookimpl
    def around_propose(self) -> AroundPropose:
        """Shrink a proposal."""

        def shrunk(following: Callable[..., Update | None], **arguments: Any) -> Update | None:
            update = following(**arguments)
            if update is None:
                return None

            def delta(span: Span) -> torch.Tensor | None:
                proposed = update.delta(span)
                if proposed is None:
                    return None
                if self.config.by == "spectrum":
                    return by_spectrum(proposed)
                if span.name not in self._square or not self._samples:
                    return proposed
                # A drift of half a window replaces `scale` times half a window of updates.
                square = self._square[span.name] / (1.0 - _DECAY**self._samples)
                return by_steps(
                    proposed, square.to(proposed.device), update.horizon / self.config.every
                )

            return attrs.evolve(update, delta=delta)

        return shrunk

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Add the samples and the squares."""
        del phase
        held = sum(t.nbytes for kept in (self._last, self._square) for t in kept.values())
        return ledger.add("tried-shrink", "samples", "host", held)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {
            "last": dict(self._last), "square": dict(self._square), "updates": self._updates,
            "samples": self._samples, "fresh": self._fresh,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._last, self._square = dict(state["last"]), dict(state["square"])
        self._updates, self._samples = int(state["updates"]), int(state["samples"])
        self._fresh = bool(state["fresh"])


def by_steps(drift: torch.Tensor, square: torch.Tensor, samples: float) -> torch.Tensor:
    """Return a drift, each element shrunk as James and Stein do, by the size of its own steps.

    Adam divides a step by the size of the gradient, so the size of a weight's steps is the unit of
    Adam's preconditioned space. A random walk of `n` steps of mean square `square` has a drift
    between two halves of mean square `2 n / 3 * square`, with `n` steps a half; `samples` is half
    of it (half of the drift is the jump), so the noise is `4 / 3 * samples * square`, times 1/4.
    """
    noise = square * (samples / 3.0)
    kept = 1.0 - noise / drift.square().clamp_min(1e-30)
    return drift * kept.clamp_min(0.0)


def by_spectrum(drift: torch.Tensor) -> torch.Tensor:
    """Return a matrix with its singular values shrunk (Gavish and Donoho, 2017, Frobenius loss).

    The noise is told by the median singular value. A vector stays as it is.
    """
    if drift.dim() < _MATRIX or min(drift.shape[0], drift[0].numel()) < _MATRIX:
        return drift
    matrix = drift.reshape(drift.shape[0], -1)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    rows, columns = sorted(matrix.shape)
    ratio = rows / columns
    noise = values.median() / math.sqrt(median_of(ratio) * columns)
    scaled = values / (noise * math.sqrt(columns))
    inside = (scaled.square() - ratio - 1.0).square() - 4.0 * ratio
    kept = inside.clamp_min(0.0).sqrt() / scaled
    kept = torch.where(scaled > 1.0 + math.sqrt(ratio), kept, 0.0)
    return (left * (kept * noise * math.sqrt(columns)) @ right).view_as(drift)


def median_of(ratio: float) -> float:
    """Return the median of the Marchenko-Pastur law of a matrix with this ratio of its sides."""
    low, high = (1.0 - math.sqrt(ratio)) ** 2, (1.0 + math.sqrt(ratio)) ** 2
    places = torch.linspace(low, high, 20001, dtype=torch.float64)[1:-1]
    weights = ((high - places) * (places - low)).sqrt() / places
    total = weights.cumsum(0)
    return float(places[int(torch.searchsorted(total, total[-1] / 2))])
