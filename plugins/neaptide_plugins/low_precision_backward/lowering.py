"""Lowers the backward of some weights' products until it is measured to be too coarse."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch

from neaptide_toolkit.gradient_error import Sampled, gradients
from neaptide_toolkit.low_precision import Chosen, intercepting

from .linear import LowBackward
from .meter import Meter, adam_factors
from .products import SUMS, WORKSPACE, Seeds, fp8_gradient_product, int8_product, rounded_at_a_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import nn

    from neaptide import ParameterStore, WeighedLoss

    from .meter import VarianceVerdict

_LOSS_SCALE = 1024.0
"""Of measurements: gradients of a mean loss in fp16 would vanish otherwise."""


@attrs.define(eq=False)
class Lowering:
    """What is lowered, what of it is measured, and what became of that.

    Args:
        dtype: `"int8"` or `"fp8"`.
        seed: of the run, for stochastic rounding.
        chosen: the weights.
        sampled: the parameters whose gradients are measured.
        device: that computes.
        min_rows: rows below which a product stays exact.
        check_every: updates between two measurements.
        limit: of the extra variance.
    """

    dtype: Literal["int8", "fp8"]
    seed: int
    chosen: Chosen
    sampled: Sampled
    device: torch.device
    min_rows: int
    check_every: int
    limit: float
    ratio: float | None = None
    """What was measured last."""
    refused: str = ""
    """Why the rest of the run is exact; empty while it is not."""
    seeds: Seeds = attrs.field(init=False)
    meter: Meter = attrs.field(init=False)
    exact: list[torch.Tensor] = attrs.field(init=False)
    """Place for exact gradients while the others are computed."""
    handler: LowBackward = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.seeds = Seeds(self.seed)
        first, self.exact = (
            [torch.zeros_like(parameter.detach()) for parameter in self.sampled.parameters]
            for _ in range(2)
        )
        self.meter = Meter(self.check_every, self.limit, first)
        self.handler = self._handler_of(self.seeds)

    @property
    def workspace(self) -> int:
        """Bytes on the device to round the largest weight, or for the sums of its gradient."""
        largest = self.chosen.largest
        if self.dtype == "fp8":  # a copy in float32, which scales
            return largest * torch.float32.itemsize
        return max(min(largest, rounded_at_a_time(self.device)) * WORKSPACE, largest * SUMS)

    @property
    def held(self) -> list[torch.Tensor]:
        """All tensors held between steps."""
        return [*self.meter.kept, *self.exact]

    def lowered(self) -> AbstractContextManager[None]:
        """Lower the products computed meanwhile."""
        return intercepting(self.handler)

    def measure(
        self, model: nn.Module, store: ParameterStore, call: Callable[[], WeighedLoss]
    ) -> tuple[VarianceVerdict, str] | None:
        """Compare both backwards of a micro-batch beside the run.

        Returns:
            After every second micro-batch the verdict, and the metric it was measured in.
        """
        try:
            low = self._measured(partial(gradients, model, store, call))
        except (RuntimeError, ValueError) as error:
            # Too little memory, or a checkpoint that knows backward() alone: the run can go on.
            verdict: VarianceVerdict | None = self.meter.failed(
                str(error).strip().partition("\n")[0]
            )
            factors = None
        else:
            with store.compute():
                factors = adam_factors(store.optimizer, self.sampled.parameters)
            verdict = self.meter.take(self.exact, low, factors)
        if verdict is None:
            return None
        self.ratio, self.refused = verdict.ratio, verdict.reason
        return verdict, "L2" if factors is None else "Adam"

    def _measured(
        self, take: Callable[..., list[torch.Tensor | None]]
    ) -> list[torch.Tensor | None]:
        """Return the low-precision gradients, the exact ones being in `self.exact`."""
        parameters = self.sampled.parameters
        _copy(take(parameters, loss_scale=_LOSS_SCALE), self.exact)
        # Seeds of its own: the run rounds as if nothing had been measured.
        with intercepting(self._handler_of(Seeds(~self.seed, self.seeds.drawn))):
            return take(parameters, loss_scale=_LOSS_SCALE)

    def _handler_of(self, seeds: Seeds) -> LowBackward:
        multiply = partial(int8_product, seeds=seeds)
        return LowBackward(
            self.chosen.names,
            multiply if self.dtype == "int8" else fp8_gradient_product,
            self.min_rows,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the seeds drawn, the meter, and whether it has refused to go on."""
        return {
            "drawn": self.seeds.drawn,
            "meter": self.meter.state_dict(),
            "ratio": self.ratio,
            "refused": self.refused,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.seeds.drawn = int(state["drawn"])
        self.meter.load_state_dict(state["meter"])
        self.ratio = None if state["ratio"] is None else float(state["ratio"])
        self.refused = str(state["refused"])


def _copy(gradients: list[torch.Tensor | None], places: list[torch.Tensor]) -> None:
    for place, gradient in zip(places, gradients, strict=True):
        place.zero_() if gradient is None else place.copy_(gradient)
