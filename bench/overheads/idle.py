"""A plugin for `overhead.py` that implements every hook of a step. The hooks do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import Plugin, hookimpl
from neaptide.plugin import NoConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import AroundBackward, AroundForward, AroundOptimizerStep, AroundTrainStep


def passing(following: Callable[..., Any], **arguments: Any) -> Any:
    """Call the next middleware with unchanged arguments."""
    return following(**arguments)


@attrs.define(eq=False)
class Idle(Plugin[NoConfig]):
    """Implements four notifications and four middlewares of a step."""

    @hookimpl
    def around_train_step(self) -> AroundTrainStep:
        """Return a middleware without effect."""
        return passing

    @hookimpl
    def around_forward(self) -> AroundForward:
        """Return a middleware without effect."""
        return passing

    @hookimpl
    def around_backward(self) -> AroundBackward:
        """Return a middleware without effect."""
        return passing

    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep:
        """Return a middleware without effect."""
        return passing

    @hookimpl
    def before_forward(self, step: int, phase: Any, model: Any, batch: Any) -> None:
        """Do nothing."""

    @hookimpl
    def after_forward(self, step: int, phase: Any, loss: Any) -> None:
        """Do nothing."""

    @hookimpl
    def after_backward(self, step: int, phase: Any, model: Any) -> None:
        """Do nothing."""

    @hookimpl
    def after_step(self, step: int, phase: Any, result: Any) -> None:
        """Do nothing."""
