"""A plugin for predict_cost.py that makes the guard refuse every jump.

A jump is a predicted update. The guard tests it by forward passes, which are called probes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import Plugin, PluginSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import AroundForward, AroundPredict, WeighedLoss


@attrs.define(eq=False)
class Refuse(Plugin[Any]):
    """Makes the guard refuse each jump after all attempts.

    Each probe of a jump returns a larger loss than the previous probe.
    """

    _probes: int = attrs.field(init=False, default=0)

    @hookimpl
    def around_predict(self) -> AroundPredict:
        """Reset the count of probes."""

        def begun(following: Callable[..., Any], **arguments: Any) -> Any:
            self._probes = 0
            return following(**arguments)

        return begun

    @hookimpl
    def around_forward(self) -> AroundForward:
        """Add 1 to the loss for each earlier probe."""

        def raised(following: Callable[..., WeighedLoss], **arguments: Any) -> WeighedLoss:
            loss = following(**arguments)
            if arguments["moment"] != "probe":
                return loss
            self._probes += 1
            return attrs.evolve(loss, value=loss.value + (self._probes - 1) * loss.count)

        return raised


REFUSE = PluginSpec(name="refuse", load="predictions.refusing:Refuse", numerics="changes-training")
