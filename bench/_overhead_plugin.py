"""A plugin for `overhead.py` that has every hook of a step and does nothing in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import Plugin, hookimpl
from neaptide.plugin import NoConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import AroundBackward, AroundForward, AroundOptimizerStep, AroundTrainStep


def passing(following: Callable[..., Any], **arguments: Any) -> Any:
    """Pass everything through."""
    return following(**arguments)


@attrs.define(eq=False)
class Idle(Plugin[NoConfig]):
    """Four notifications and four middlewares a step."""

    @hookimpl
    def around_train_step(self) -> AroundTrainStep:
        """Stand around the step."""
        return passing

    @hookimpl
    def around_forward(self) -> AroundForward:
        """Stand around the forward."""
        return passing

    @hookimpl
    def around_backward(self) -> AroundBackward:
        """Stand around the backward."""
        return passing

    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep:
        """Stand around the update."""
        return passing

    @hookimpl
    def before_forward(self, step: int, phase: Any, model: Any, batch: Any) -> None:
        """Look on."""

    @hookimpl
    def after_forward(self, step: int, phase: Any, loss: Any) -> None:
        """Look on."""

    @hookimpl
    def after_backward(self, step: int, phase: Any, model: Any) -> None:
        """Look on."""

    @hookimpl
    def after_step(self, step: int, phase: Any, result: Any) -> None:
        """Look on."""
