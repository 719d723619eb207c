"""A predictor that proposes jumps by the network of bench/predictions/learning.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch
from predictions.learning import AHEAD, PARTS, Proposer, history_of, network_file
from safetensors.torch import load_file

from neaptide import Update, hookimpl
from neaptide_kernels.apply_delta import apply_delta
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.predictors.gains import Gains
from neaptide_toolkit.predictors.held_tensors import WindowOps
from neaptide_toolkit.predictors.window import Window, WindowPlan
from neaptide_toolkit.predictors.window_predictor import WindowPredictor

from .learned import SPEC, LearnedConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import ParameterStore, Run
    from neaptide.api.steps import Probe


@attrs.define(eq=False)
class Learned(WindowPredictor[LearnedConfig]):
    """Keeps the means of five parts of a window."""

    name = SPEC.name
    ops = WindowOps(quantize_int8, dequantize_int8, apply_delta)
    _network: Proposer = attrs.field(init=False, factory=Proposer)

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore, probe: Probe) -> None:
        """Load the network; FileNotFoundError tells the command that makes it."""
        path = network_file(self.config.unseen)
        if not path.is_file():
            msg = f"{path} is not there: run `python bench/predictions/learning.py` first"
            raise FileNotFoundError(msg)
        self._network.load_state_dict(load_file(path))
        super().on_run_start(run, store, probe)

    def plan(self, updates: int, stretch: float) -> WindowPlan:
        """Return a window of a third of the run so far."""
        every = self.config.sample_every
        whole = min(max(updates / 2, self.config.min_window), self.config.max_window) * stretch
        return WindowPlan(PARTS * max(1, round(whole / every / PARTS)), every)

    def coefficients(self, index: int, samples: int) -> tuple[float, ...]:
        """Return the sample's coefficients in the means."""
        part = samples // PARTS
        return tuple(1.0 / part if index // part == each else 0.0 for each in range(PARTS))

    def predict(self, window: Window, horizon: int, scale: float) -> Gains:
        """Return the length of the jump."""
        del scale
        return Gains((0.0,) * PARTS, max(1, min(horizon, round(window.length * AHEAD))))

    def _update(self, horizon: int, delta_of: Callable[[str], torch.Tensor | None]) -> Update:
        del delta_of
        window, run = self._window, self._run
        assert window is not None, "it is full"
        assert run is not None, "it has started"
        progress = self._updates / run.config.train.steps
        factor = self.config.scale * self._pace.scale
        factor *= min(1.0, horizon / (window.length * AHEAD))

        def delta(name: str) -> torch.Tensor | None:
            if not window.complete(name):
                return None
            return self._change(window, name, progress) * factor

        return super()._update(horizon, delta)

    @torch.no_grad()
    def _change(self, window: Window, name: str, progress: float) -> torch.Tensor:
        rows = [held.whole(held.storage.proposes_on) for held in window.rows[name]]
        history, unit = history_of(torch.stack([row.reshape(-1) for row in rows]))
        change = self._network(history, torch.full_like(history[:, 0], progress))
        return (change * unit).view_as(rows[0])
