"""`LYING_PREDICTOR`: a predictor with bad proposals. A run must survive these proposals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from attrs.validators import in_

from neaptide.api.steps import Update
from neaptide.config import field
from neaptide.plugin import Plugin, PluginSpec, hookimpl

if TYPE_CHECKING:
    from neaptide.api.parameters import ParameterStore
    from neaptide.api.spans import Snapshot, Span

LIES = ("exaggerated", "infinite", "misshapen", "nan", "random", "stale")


@attrs.frozen(kw_only=True)
class LyingConfig:
    """Settings of `[plugins.lying-predictor]`."""

    lie: str = field(
        "random",
        validator=in_(LIES),
        help="kind of the proposed delta (change of a weight): `random` direction; `exaggerated`: "
        "four times the last movement; `stale`: back to the weights at the first proposal; `nan`; "
        "`infinite`; `misshapen`",
    )
    size: float = field(0.03, help="norm of a random delta, as a share of the norm of the weight")


@attrs.define(eq=False)
class LyingPredictor(Plugin[LyingConfig]):
    """A predictor that makes a bad proposal at every Predict step.

    The plugin stores two copies of the weights. Checkpoints do not contain these copies.
    """

    _first: Snapshot | None = attrs.field(init=False, default=None)
    _last: Snapshot | None = attrs.field(init=False, default=None)
    _proposals: int = attrs.field(init=False, default=0)

    @hookimpl
    def propose_update(self, store: ParameterStore, horizon: int) -> Update:
        """Return a bad proposal of the configured kind."""
        now = store.snapshot()
        self._proposals += 1
        first, last = self._first or now, self._last or now
        self._first, self._last = first, now

        def delta(span: Span) -> torch.Tensor:
            weight = now.weights[span.name]
            if self.config.lie == "exaggerated":
                return 4.0 * (weight - last.weights[span.name])
            if self.config.lie == "stale":
                return first.weights[span.name] - weight
            return self._unusable(span, weight)

        return Update(horizon, delta)

    def _unusable(self, span: Span, weight: torch.Tensor) -> torch.Tensor:
        if self.config.lie == "misshapen":
            return torch.zeros(*span.shape, 2)
        if self.config.lie == "random":
            generator = torch.Generator().manual_seed(self._proposals)
            drawn = torch.randn(span.shape, generator=generator, device="cpu").to(weight.dtype)
            return drawn.mul_(self.config.size * weight.norm() / drawn.norm().clamp_min(1e-30))
        changed = torch.zeros(span.shape)
        changed.view(-1)[-1:] = float("nan" if self.config.lie == "nan" else "inf")
        return changed

    def state_dict(self) -> dict[str, Any]:
        """Return the number of proposals."""
        return {"proposals": self._proposals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the number of proposals."""
        self._proposals = state["proposals"]


LYING_PREDICTOR = PluginSpec(
    name="lying-predictor",
    load="neaptide_toolkit.testing.lying_predictor:LyingPredictor",
    config=LyingConfig,
    summary="A predictor with bad proposals, for tests.",
    claims={"predictor"},
    phases={"predict"},
    numerics="changes-training",
)
