"""A Predict step: apply a predicted update, judge it by forwards alone, or take it back bitwise."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import torch

from . import buffers, rng
from .errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from .parameters import ParameterStore
    from .spans import Change, Snapshot, Span
    from .steps import Update


@attrs.frozen
class Verdict:
    """What the guard found."""

    accepted: bool
    scale: float
    loss_before: float
    loss_after: float
    norm: float
    reason: str


@attrs.frozen(kw_only=True)
class Guard:
    """A trust region judged by forward passes: accept when the probe loss rises by at most `rise`.

    It does not know whether a jump is worth anything, only that it does no harm now; predict-time
    forecasts of value correlate too little with what the jump is worth later.
    """

    rise: float
    """Relative rise of the probe loss that is let through, 0.02 = 2 %."""
    halvings: int
    """Times a refused jump is halved and tried again."""

    def judge(self, store: ParameterStore, update: Update, probe: Callable[[], float]) -> Verdict:
        """Apply `update` to the weights of `store` and keep it, part of it, or nothing.

        Refused, every weight is what it was, bit for bit. Needs host memory for one copy of the
        trainable weights. Riders are told of an accepted jump, with the delta applied.
        """
        before = probe()
        norm, problem = _inspect(store, update)
        if problem is None and not math.isfinite(before):
            problem = f"the probe loss before the jump is {before}"
        if problem is not None:
            return Verdict(False, 0.0, before, math.nan, norm, problem)
        snapshot = store.snapshot()
        limit = before + self.rise * abs(before)
        after = math.nan
        for halving in range(self.halvings + 1):
            scale = 0.5**halving
            try:
                apply(store, update, scale)
                after = probe()
            except BaseException:
                store.restore(snapshot)  # nobody is left with half a jump
                raise
            if after <= limit:
                store.carry(_change_since(snapshot))
                return Verdict(True, scale, before, after, norm, "")
            store.restore(snapshot)
        reason = f"the probe loss rose from {before:.6g} to {after:.6g}, over {limit:.6g}"
        return Verdict(False, 0.0, before, after, norm, reason)


def apply(store: ParameterStore, update: Update, scale: float) -> None:
    """Add `scale * delta` to every trainable weight, as the update itself adds or in its dtype."""
    add = update.add or _add
    for span in store.spans():
        if not span.trainable:
            continue
        delta = update.delta(span)
        if delta is not None:
            with store.loan(span, "write") as weight, torch.no_grad():
                add(weight, delta.to(weight.device), scale)


def _add(weight: torch.Tensor, delta: torch.Tensor, scale: float) -> None:
    weight.add_(delta.to(weight.dtype), alpha=scale)


def _change_since(snapshot: Snapshot) -> Change:
    """Return what the jump really added to a weight, rounding included."""

    def change(span: Span, weight: torch.Tensor) -> torch.Tensor:
        return weight - snapshot.weights[span.name].to(weight.device)

    return change


def _inspect(store: ParameterStore, update: Update) -> tuple[float, str | None]:
    """Return the L2 norm of the whole delta and what is wrong with it, if anything."""
    squares = 0.0
    for span in store.spans():
        delta = update.delta(span) if span.trainable else None
        if delta is None:
            continue
        if not isinstance(delta, torch.Tensor) or not delta.is_floating_point():
            msg = f"a predicted delta must be a float tensor or None (got {delta!r:.80})"
            raise PluginError(msg)
        if tuple(delta.shape) != span.shape:
            return math.nan, (
                f"the delta of {span.name} has shape {tuple(delta.shape)}, not {span.shape}"
            )
        squares += float(torch.linalg.vector_norm(delta, dtype=torch.float64)) ** 2
        if not math.isfinite(squares):
            return math.nan, f"the delta of {span.name} is not finite"
    return math.sqrt(squares), None


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run forwards in eval mode without a trace: modes, buffers and random state come back."""
    modes = {module: module.training for module in model.modules()}
    with buffers.preserved(model):
        model.eval()
        try:
            with torch.no_grad(), rng.preserved():
                yield
        finally:
            for module, training in modes.items():
                module.training = training
