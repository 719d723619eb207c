"""The checked plugin and its test run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.plugin import PluginSpec
from neaptide.run.trainer import HybridTrainer

from .failures import Attempt
from .tiny import STEADY_PREDICTOR, TinyTask, tiny_loss

if TYPE_CHECKING:
    from collections.abc import Mapping

STEPS = 30
PHASE_LENGTHS = {
    "warmup": {"steps": 4},
    "full": {"steps": 6},
    "predict": {"max_horizon": 5, "correction_interval": 1},
    "correct": {"steps": 3},
}


@attrs.frozen
class Subject:
    """The checked plugin, its settings and the plugins enabled beside it."""

    spec: PluginSpec
    settings: Mapping[str, Any]
    beside: tuple[str | PluginSpec, ...]
    may_fail: bool = False
    """True if the run continues after the plugin fails as an observer; otherwise the run ends."""
    attempt: Attempt = attrs.field(factory=Attempt)
    """What the law (the check that runs) is doing now, and the advice if this fails."""

    def plugins(self, *more: PluginSpec) -> list[str | PluginSpec]:
        """Return the plugins to enable; if none of them is a predictor, a predictor is added."""
        claims = self.spec.claims | {
            claim
            for other in self.beside
            if isinstance(other, PluginSpec)
            for claim in other.claims
        }
        predictor = [] if "predictor" in claims else [STEADY_PREDICTOR]
        spec = self.spec if self.may_fail else attrs.evolve(self.spec, observer=False)
        return [spec, *self.beside, *predictor, *more]

    def config(self) -> dict[str, Any]:
        """Return the run's configuration."""
        return {
            "phases": PHASE_LENGTHS,
            "train": {"clip_norm": 1.0, "steps": STEPS},
            "plugins": {self.spec.name: dict(self.settings)},
        }

    def trainer(self, task: TinyTask, *more: PluginSpec) -> HybridTrainer:
        """Return a trainer of `task` with these plugins."""
        return HybridTrainer(
            task.model,
            task.optimizer,
            loss_fn=tiny_loss,
            config=self.config(),
            plugins=self.plugins(*more),
        )
