"""The signatures of middleware: functions `f(next, **arguments)` that `around_*` hooks return.

`next` runs the wrapped part and takes keyword arguments. A middleware may change these arguments.
It may call `next` once, several times, or not at all. The signature of a middleware names the
arguments that the middleware uses. The middleware passes all other arguments to `next`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn

from .history import History
from .parameters import ParameterStore
from .phases import Phase
from .steps import Jump, Outcome, Trained, Update, WeighedLoss

Moment = Literal["train", "probe", "evaluate"]
"""Purpose of a forward: training, check of a jump, evaluation. Only `train` computes gradients."""


class AroundTrainStep(Protocol):
    """Wraps one ordinary step: its micro-batches, its backwards and its update."""

    def __call__(
        self, following: Callable[..., Trained], /, *, batch: Any, phase: Phase
    ) -> Trained: ...


class AroundForward(Protocol):
    """Wraps each call of model and loss; `batch` is one micro-batch."""

    def __call__(
        self,
        following: Callable[..., WeighedLoss],
        /,
        *,
        model: nn.Module,
        batch: Any,
        phase: Phase,
        moment: Moment,
    ) -> WeighedLoss: ...


class AroundBackward(Protocol):
    """Wraps each backward; `loss` is a 0-dim tensor that requires grad."""

    def __call__(
        self, following: Callable[..., None], /, *, loss: torch.Tensor, phase: Phase
    ) -> None: ...


class AroundOptimizerStep(Protocol):
    """Wraps the update.

    Gradients are multiplied by `gradient_scale` (a float or a 0-dim tensor) before they are
    measured, clipped and used. `check_norm=True` requests a check for inf and nan. `updated`
    contains the names of the spans (parameters or slices) that the store has already updated inside
    the backward. To accumulate more gradients, return `Outcome.DEFERRED` and do not call `next`.
    """

    def __call__(
        self,
        following: Callable[..., Outcome],
        /,
        *,
        optimizer: torch.optim.Optimizer,
        gradient_scale: float | torch.Tensor,
        check_norm: bool,
        updated: frozenset[str],
        phase: Phase,
    ) -> Outcome: ...


class AroundPredict(Protocol):
    """Wraps a Predict step. A middleware that returns None prevents the predicted update."""

    def __call__(
        self, following: Callable[..., Jump | None], /, *, batch: Any, horizon: int, phase: Phase
    ) -> Jump | None: ...


class AroundPropose(Protocol):
    """Wraps `propose_update`. A middleware that returns None drops the proposed update."""

    def __call__(
        self,
        following: Callable[..., Update | None],
        /,
        *,
        store: ParameterStore,
        history: History,
        horizon: int,
    ) -> Update | None: ...


class AroundCorrect(AroundTrainStep, Protocol):
    """Wraps an ordinary step of the Correct phase, inside `around_train_step`."""


class AroundEvaluate(Protocol):
    """Wraps an evaluation; returns the mean loss over `batches`."""

    def __call__(
        self, following: Callable[..., float], /, *, batches: Iterable[Any], phase: Phase
    ) -> float: ...


class AroundSave(Protocol):
    """Wraps the writing of a checkpoint into `directory`; returns the path of the checkpoint."""

    def __call__(self, following: Callable[..., Path], /, *, directory: Path) -> Path: ...
