"""What mypy says of a plugin's middleware: nothing of a right one, and an error of a wrong one.

The checks are the comments: `tox -e type` runs mypy over this file, and strict mypy takes an unused
`type: ignore` for an error. So a wrong middleware that it no longer objects to fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide import Outcome, hookimpl
from neaptide.api import middleware
from neaptide.hooks import hookspecs
from neaptide.hooks.middleware import RETURNS

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from neaptide import AroundBackward, AroundForward, AroundOptimizerStep, AroundPredict
    from neaptide.api.phases import Phase
    from neaptide.api.steps import WeighedLoss


class Right:
    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep:
        def counted(following: Callable[..., Outcome], **arguments: Any) -> Outcome:
            return following(**arguments)

        return counted

    @hookimpl
    def around_forward(self) -> AroundForward:
        def timed(
            following: Callable[..., WeighedLoss], *, moment: str, **arguments: Any
        ) -> WeighedLoss:
            return following(moment=moment, **arguments)

        return timed

    @hookimpl
    def around_backward(self) -> AroundBackward:
        def scaled(following: Callable[..., None], *, loss: torch.Tensor, phase: Phase) -> None:
            following(loss=loss * 2, phase=phase)

        return scaled

    @hookimpl
    def around_predict(self) -> AroundPredict:
        def vetoed(following: Callable[..., Any], **_: Any) -> None:
            del following

        return vetoed


class Wrong:
    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep:
        def says_a_bool(following: Callable[..., Outcome], **arguments: Any) -> bool:
            return following(**arguments) is Outcome.APPLIED

        return says_a_bool  # type: ignore[return-value]  # an Outcome is expected

    @hookimpl
    def around_forward(self) -> AroundForward:
        def misses_the_rest(following: Callable[..., WeighedLoss], *, moment: str) -> WeighedLoss:
            return following(moment=moment)

        return misses_the_rest  # type: ignore[return-value]  # model, batch and phase are passed, too

    @hookimpl
    def around_backward(self) -> AroundBackward:
        def misnames(following: Callable[..., None], *, losses: torch.Tensor, **_: Any) -> None:
            following(loss=losses)

        return misnames  # type: ignore[return-value]  # the argument is `loss`

    @hookimpl
    def around_predict(self) -> AroundPredict:
        def takes_another_type(
            following: Callable[..., Any], *, horizon: str, **arguments: Any
        ) -> None:
            following(horizon=horizon, **arguments)

        return takes_another_type  # type: ignore[return-value]  # a horizon is an int


def test_each_around_hook_has_a_protocol_of_its_own() -> None:
    for hook in RETURNS:
        name = "".join(part.title() for part in hook.split("_"))
        assert f"middleware.{name} | None" == getattr(hookspecs, hook).__annotations__["return"]
        assert getattr(middleware, name)


def test_every_around_hook_says_what_it_returns() -> None:
    assert RETURNS.keys() == {name for name in vars(hookspecs) if name.startswith("around_")}
