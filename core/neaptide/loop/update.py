"""The parts of an update: the backward, the check of the gradients, the optimizer's step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from neaptide.api.phases import WARMUP
from neaptide.api.steps import Outcome
from neaptide.errors import ConfigError, DivergedError

if TYPE_CHECKING:
    from neaptide.api.parameters import ParameterStore
    from neaptide.api.phases import Phase
    from neaptide.api.task import Run
    from neaptide.config.schema import TrainSection

    from .state import Pending, TrainState


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
    if train.check_finite and not _finite(store, norm, loss):
        return Outcome.SKIPPED
    if train.clip_norm is not None and norm is not None:
        store.clip_gradients(train.clip_norm, norm)
    store.step()
    store.finish_update()
    return Outcome.APPLIED


def _finite(store: ParameterStore, norm: torch.Tensor | None, loss: float | torch.Tensor) -> bool:
    # A non-finite gradient makes the norm non-finite, but the loss may be finite.
    if norm is None:
        if store.has_nonfinite_gradients():
            return False
    elif not math.isfinite(norm):
        return False
    return math.isfinite(loss)


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
