"""The middleware that each `around_*` hook returns: `f(next, **arguments)`.

`next` runs what the middleware wraps. Call it by keyword, with the arguments as they came or with
others, never, once or again. A middleware names the arguments it looks at, and passes the rest on
through `**arguments`.
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
"""What a forward is for; the last two run without gradients."""


class AroundTrainStep(Protocol):
    """Wraps one ordinary step: its micro-batches, backwards and update."""

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
    """Wraps each backward; `loss` is a 0-dim tensor with grad."""

    def __call__(
        self, following: Callable[..., None], /, *, loss: torch.Tensor, phase: Phase
    ) -> None: ...


class AroundOptimizerStep(Protocol):
    """Wraps the update; returns `Outcome.DEFERRED` without calling `next` to go on accumulating."""

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
    """Wraps a Predict step; returns None to veto the jump."""

    def __call__(
        self, following: Callable[..., Jump | None], /, *, batch: Any, horizon: int, phase: Phase
    ) -> Jump | None: ...


class AroundPropose(Protocol):
    """Wraps the call of the predictor; returns None to drop what it proposed."""

    def __call__(
        self,
        following: Callable[..., Update | None],
        /,
        *,
        store: ParameterStore,
        history: History,
        horizon: int,
    ) -> Update | None: ...


class AroundCorrect(Protocol):
    """Wraps an ordinary step of the Correct phase, inside `around_train_step`."""

    def __call__(
        self, following: Callable[..., Trained], /, *, batch: Any, phase: Phase
    ) -> Trained: ...


class AroundEvaluate(Protocol):
    """Wraps an evaluation; returns the mean loss over `batches`."""

    def __call__(
        self, following: Callable[..., float], /, *, batches: Iterable[Any], phase: Phase
    ) -> float: ...


class AroundSave(Protocol):
    """Wraps writing a checkpoint into `directory`; returns its path."""

    def __call__(self, following: Callable[..., Path], /, *, directory: Path) -> Path: ...
