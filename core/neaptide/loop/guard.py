"""A Predict step: apply a predicted update, judge it by forwards alone, or take it back bitwise."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.api import buffers, rng
from neaptide.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from neaptide.api.parameters import ParameterStore
    from neaptide.api.spans import Change, Snapshot, Span
    from neaptide.api.steps import Update


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

        Refused, every weight is what it was, bit for bit. Accepted, every weight it moved is
        finite: those the probe does not read, too. Needs host memory for one copy of the trainable
        weights. Riders are told of an accepted jump, with the delta applied.
        """
        before, snapshot = probe(), store.snapshot()
        try:
            verdict = self._tried(store, update, probe, before, snapshot)
        except BaseException:
            store.restore(snapshot)  # nobody is left with half a jump
            raise
        if verdict.accepted:
            store.notify_update(_change_since(snapshot))
        return verdict

    def _tried(
        self,
        store: ParameterStore,
        update: Update,
        probe: Callable[[], float],
        before: float,
        snapshot: Snapshot,
    ) -> Verdict:
        after, limit = math.nan, before + self.rise * abs(before)
        norm, problem = _inspect(store, update)
        if problem is None and not math.isfinite(before):
            problem = f"the probe loss before the jump is {before}"
        if problem is not None:
            store.restore(snapshot)  # asking for deltas may have left something all the same
            return Verdict(False, 0.0, before, math.nan, norm, problem)
        for halving in range(self.halvings + 1):
            scale = 0.5**halving
            problem = apply(store, update, scale)
            after = probe() if problem is None else math.nan
            if after <= limit and math.isfinite(after):
                return Verdict(True, scale, before, after, norm, "")
            store.restore(snapshot)
        rose = f"the probe loss rose from {before:.6g} to {after:.6g}, over {limit:.6g}"
        return Verdict(False, 0.0, before, after, norm, problem or rose)


def apply(store: ParameterStore, update: Update, scale: float) -> str | None:
    """Add `scale * delta` to every trainable weight, as the update itself adds or in its dtype.

    Return what is wrong with a delta or with what it made of a weight, where it then stopped.
    """
    add = update.add or _add
    for span in store.spans():
        delta, problem = _delta_of(update, span)
        if problem is not None:
            return problem  # it passed when it was inspected: a delta need not stay what it was
        if delta is None:
            continue
        with store.loan(span, "write") as weight, torch.no_grad():
            add(weight, delta.to(weight.device), scale)
            finite = not weight.numel() or bool(torch.stack(weight.aminmax()).isfinite().all())
        if not finite:  # in its own dtype; one that no probe reads would go unnoticed
            return f"the jump leaves {span.name} not finite"
    return None


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
        delta, problem = _delta_of(update, span)
        if problem is not None:
            return math.nan, problem
        if delta is None:
            continue
        norm = float(torch.linalg.vector_norm(delta, dtype=torch.float64))
        squares += norm * norm
        if not math.isfinite(squares):
            return math.nan, f"the delta of {span.name} is not finite"
    return math.sqrt(squares), None


_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _delta_of(update: Update, span: Span) -> tuple[torch.Tensor | None, str | None]:
    """Return the delta of a weight that may change, and what is wrong with it."""
    delta = update.delta(span) if span.trainable else None
    if delta is None:
        return None, None
    if (
        not isinstance(delta, torch.Tensor)
        or delta.dtype not in _DTYPES
        or delta.layout is not torch.strided
        or delta.is_meta
    ):
        got = type(delta).__name__
        if isinstance(delta, torch.Tensor):
            got = f"{delta.dtype}, {delta.layout}, on {delta.device}"
        msg = f"the delta predicted for {span.name} must be a float tensor or None (got {got})"
        raise PluginError(msg)
    if tuple(delta.shape) != span.shape:
        return None, f"the delta of {span.name} has shape {tuple(delta.shape)}, not {span.shape}"
    return delta.detach(), None


@contextmanager
def unwritten(store: ParameterStore, model: nn.Module) -> Iterator[None]:
    """Raise PluginError at the end if somebody wrote to weights: nothing could take that back."""
    written: list[Span] = []
    leave = store.on_write(written.append)
    versions = [parameter._version for parameter in model.parameters()]  # noqa: SLF001 - torch's
    try:
        yield
    finally:
        leave()
    if written or versions != [parameter._version for parameter in model.parameters()]:  # noqa: SLF001
        where = f" (it wrote to {written[0].name})" if written else ""
        msg = (
            f"weights changed while an update was proposed{where}: return what to add as "
            "Update(horizon, delta), which the core applies, judges and takes back"
        )
        raise PluginError(msg)


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Have the modules' modes, buffers, random state and torch's grad mode come back."""
    modes = {module: module.training for module in model.modules()}
    with torch.set_grad_enabled(torch.is_grad_enabled()), buffers.preserved(model), rng.preserved():
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run forwards in eval mode without a trace: modes, buffers and random state come back."""
    with as_it_was(model), torch.no_grad():
        model.eval()
        yield
