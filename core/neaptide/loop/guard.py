"""The guard applies a predicted update (a jump), measures the loss, and may undo the update."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide import buffers
from neaptide.api import rng
from neaptide.errors import PluginError
from neaptide.norms import long_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from neaptide.api.parameters import ParameterStore
    from neaptide.api.spans import Snapshot, Span
    from neaptide.api.steps import Update


@attrs.frozen
class Verdict:
    """The guard's decision on one update. The class `Jump` documents the fields."""

    accepted: bool
    scale: float
    loss_before: float
    loss_after: float
    norm: float
    reason: str


@attrs.frozen(kw_only=True)
class Guard:
    """Accepts an update if the loss of a forward (the probe) rises by at most `rise`.

    The guard compares the loss directly before and after a jump. It does not estimate the later
    gain, because such estimates correlate too little with the measured gain.
    """

    rise: float
    """Largest accepted relative rise of the probe loss: 0.02 is 2 %."""
    halvings: int
    """Number of times that a jump is halved and tried again before it is refused."""

    def judge(self, store: ParameterStore, update: Update, probe: Callable[[], float]) -> Verdict:
        """Try the jump `update`, then 1/2, 1/4, … of this jump, until a trial is accepted.

        If the jump is refused, every weight is bitwise unchanged. If the jump is accepted, every
        changed weight is finite, and the `on_update` callbacks have received the delta (new minus
        old weight). The guard needs host memory for one copy of the trainable weights.
        """
        before, snapshot = probe(), store.snapshot()
        try:
            verdict = self._tried(store, update, probe, before, snapshot)
        except BaseException:
            store.restore(snapshot)  # the error left a part of the jump applied
            raise
        if verdict.accepted:
            old = snapshot.weights
            store.notify_update(lambda span, weight: weight - old[span.name].to(weight.device))
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
            store.restore(snapshot)  # `update.delta` may have changed weights
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
    """Add `scale * delta` to every trainable weight; call `update.add` if set, otherwise `_add`.

    At the first unusable delta or non-finite weight, stop and return the problem as text.
    """
    add = update.add or _add
    for span in store.spans():
        delta, problem = _delta_of(update, span)
        if problem is not None:
            return problem  # `delta(span)` may return another tensor than it did in `_inspect`
        if delta is None:
            continue
        with store.loan(span, "write") as weight, torch.no_grad():
            add(weight, delta.to(weight.device), scale)
            finite = not weight.numel() or bool(torch.stack(weight.aminmax()).isfinite().all())
        if not finite:  # checked here, because the probe may not read this weight
            return f"the jump leaves {span.name} not finite"
    return None


def _add(weight: torch.Tensor, delta: torch.Tensor, scale: float) -> None:
    weight.add_(delta.to(weight.dtype), alpha=scale)


def _inspect(store: ParameterStore, update: Update) -> tuple[float, str | None]:
    """Return the L2 norm of the delta over all spans. Also return the first problem, or None."""
    norms = []
    for span in store.spans():
        delta, problem = _delta_of(update, span)
        if problem is not None:
            return math.nan, problem
        if delta is None:
            continue
        norms.append(long_norm(delta))
        if not math.isfinite(norms[-1] * norms[-1]):
            return math.nan, f"the delta of {span.name} is not finite"
    # Sorted: the order of the spans differs between stores and must not change the last digit.
    return math.hypot(*sorted(norms)), None


_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _delta_of(update: Update, span: Span) -> tuple[torch.Tensor | None, str | None]:
    """Return the delta of a span and the problem with this delta.

    The delta is None if the span does not change. The problem is None if there is no problem.
    """
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
    """When the context ends, raise PluginError if its body changed weights."""
    written: list[Span] = []
    end = store.on_write(written.append)
    versions = [parameter._version for parameter in model.parameters()]  # noqa: SLF001 - torch's
    try:
        yield
    finally:
        end()
    if written or versions != [parameter._version for parameter in model.parameters()]:  # noqa: SLF001
        where = f" (it wrote to {written[0].name})" if written else ""
        msg = (
            f"weights changed while an update was proposed{where}; return the change as "
            "Update(horizon, delta), which the core applies and judges"
        )
        raise PluginError(msg)


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """When the context ends, restore train modes, buffers, random state and torch's grad mode."""
    modes = {module: module.training for module in model.modules()}
    with torch.set_grad_enabled(torch.is_grad_enabled()), buffers.preserved(model), rng.preserved():
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Like `as_it_was`. Inside the context the model is in eval mode and computes no gradients."""
    with as_it_was(model), torch.no_grad():
        model.eval()
        yield
