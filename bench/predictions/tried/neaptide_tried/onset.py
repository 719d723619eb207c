"""`tried-onset`: jumps only where the learning rate begins to fall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import ge, le

from neaptide import Outcome, Plugin, PluginSpec, field, hookimpl
from neaptide.hooks.enabling import DYNAMICS
from neaptide_toolkit.predictors.learning_rate import rate_factor

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import AroundPredict, AroundTrainStep, Run


@attrs.frozen(kw_only=True)
class OnsetConfig:
    """`[plugins.tried-onset]`."""

    above: float = field(
        0.67,
        validator=[ge(0.0), le(1.0)],
        help="share of the peak rate down to which jumps are allowed",
    )


@attrs.define(eq=False)
class Onset(Plugin[OnsetConfig]):
    """Refuses a jump before the rate falls, and after it has fallen below `above`."""

    _updates: int = attrs.field(init=False, default=0)

    @hookimpl
    def around_train_step(self) -> AroundTrainStep:
        """Count updates."""

        def counted(following: Callable[..., Any], **arguments: Any) -> Any:
            trained = following(**arguments)
            self._updates += trained.outcome is Outcome.APPLIED
            return trained

        return counted

    @hookimpl
    def around_predict(self, run: Run) -> AroundPredict:
        """Allow a jump where the decay has begun: the rate is lower than at the update before."""
        factor = rate_factor(run.stash)

        def allowed(following: Callable[..., Any], **arguments: Any) -> Any:
            now, before = factor(self._updates), factor(self._updates - 1)
            return following(**arguments) if self.config.above <= now < before else None

        return allowed

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {"updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._updates = int(state["updates"])


SPEC = PluginSpec(
    name="tried-onset",
    load=f"{__name__}:Onset",
    config=OnsetConfig,
    summary="Allows jumps only where the learning rate begins to fall.",
    claims={DYNAMICS},  # like a forecast, it is left out of the side that does not jump
    phases={"predict"},
    numerics="changes-training",
)
