"""The parts of an update: the backward, the check of the gradients, the optimizer's step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from neaptide.api.phases import WARMUP
from neaptide.api.steps import Outcome
from neaptide.errors import ConfigError, DivergedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neaptide.api.parameters import ParameterStore
    from neaptide.api.phases import Phase
    from neaptide.api.task import Run
    from neaptide.config.schema import TrainSection
    from neaptide.plugin import PluginSpec

    from .state import Pending, TrainState

_LARGE, _SAMPLED = 1_000_000, 10


def backward(*, loss: torch.Tensor, phase: Phase) -> None:
    """Run the backward of a 0-dim loss; ConfigError if the loss does not depend on the weights."""
    del phase  # only middleware uses it
    if not loss.requires_grad:
        msg = (
            "the loss does not depend on the weights (detached, or computed without gradients); "
            "return the loss of the model's output from loss_fn"
        )
        raise ConfigError(msg)
    torch.autograd.backward(loss)


def rate_of(optimizer: torch.optim.Optimizer) -> float | None:
    """Return `lr` of the first group; None on a device, because reading it would wait."""
    rate = optimizer.param_groups[0].get("lr")
    return None if rate is None or not getattr(rate, "is_cpu", True) else float(rate)


def norm_every(train: TrainSection, store: ParameterStore, plugins: Iterable[PluginSpec]) -> int:
    """Return n: the gradient norm of every n-th update is measured.

    1 if something needs each norm, or if the model is so large that a norm costs less than 1 % of
    an update. Times and devices have no part in it, so a run has the same history everywhere.
    """
    needed = any("grad_norm" in plugin.needs for plugin in plugins)
    if train.grad_norm or train.clip_norm is not None or needed:
        return 1
    trained = sum(math.prod(span.shape) for span in store.spans() if span.trainable)
    return 1 if trained >= _LARGE else _SAMPLED


def apply_gradients(
    store: ParameterStore,
    train: TrainSection,
    loss: float | torch.Tensor,
    norm: torch.Tensor | None,
) -> Outcome:
    """Check and clip the gradients, then run the optimizer's step.

    `norm` is the L2 norm of the gradients, or None if it was not measured. `loss` is any multiple
    of the mean loss. If a gradient or `loss` is not finite, return SKIPPED without a step.
    """
    clips = train.clip_norm is not None
    if train.check_finite and not _finite(store, norm, loss, clips=clips):
        return Outcome.SKIPPED
    if train.clip_norm is not None and norm is not None:
        store.clip_gradients(train.clip_norm, norm)
    store.step()
    store.finish_update()
    return Outcome.APPLIED


def _finite(store: ParameterStore, norm: Any, loss: Any, *, clips: bool) -> bool:
    # A non-finite gradient makes the norm non-finite, but the loss may be finite.
    finite = norm is not None and math.isfinite(norm)
    if not finite and (norm is None or not clips):  # the norm of finite gradients may overflow
        finite = not store.has_nonfinite_gradients()
    return finite and math.isfinite(loss)


def note_skipped(state: TrainState, skipped: Pending, run: Run) -> None:
    """Log a skipped update; DivergedError after more than `train.max_skipped` skips in a row."""
    if state.schedule.phase is not WARMUP:
        state.schedule = state.schedule.declined()
    run.log.warning(
        "update.skipped",
        step=state.step,
        phase=skipped.phase.name,
        loss=skipped.read_loss(),
        grad_norm=skipped.read_norm(),
        in_a_row=state.skipped_in_a_row,
    )
    allowed = run.config.train.max_skipped
    if state.skipped_in_a_row > allowed:
        msg = (
            f"{state.skipped_in_a_row} updates in a row had a non-finite loss or gradient "
            f"(step {state.step}, loss {skipped.read_loss()}); lower optimizer.lr, set "
            f"train.clip_norm, or look at the data (train.max_skipped allows {allowed})"
        )
        raise DivergedError(msg)
