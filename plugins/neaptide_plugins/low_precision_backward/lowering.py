"""A low-precision backward for some weights.

It is used until its measured error exceeds a limit.
"""

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
"""Loss scale of measurements. Without a scale, gradients of a mean loss in fp16 would underflow."""


@attrs.define(eq=False)
class Lowering:
    """The weights with a low-precision backward, and the measurements of its error.

    Args:
        dtype: `"int8"` or `"fp8"`.
        seed: the run's seed, for stochastic rounding.
        chosen: the weights whose products are in low precision in the backward.
        sampled: the parameters whose gradients are measured.
        device: the device that computes.
        min_rows: a product with fewer rows stays exact.
        check_every: number of low-precision updates between two measurements.
        limit: largest variance that rounding may add, as a share of the exact gradient's variance.
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
    """Last measured extra variance divided by the gradient's variance; None before the first."""
    refused: str = ""
    """The reason why the rest of the run is exact; empty while low precision is used."""
    seeds: Seeds = attrs.field(init=False)
    meter: Meter = attrs.field(init=False)
    exact: list[torch.Tensor] = attrs.field(init=False)
    """Buffers for the exact gradients while the low-precision gradients are computed."""
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
        """Bytes needed on the device to round the largest weight or to sum its gradient."""
        largest = self.chosen.largest
        if self.dtype == "fp8":  # a float32 copy, which is scaled
            return largest * torch.float32.itemsize
        return max(min(largest, rounded_at_a_time(self.device)) * WORKSPACE, largest * SUMS)

    @property
    def held(self) -> list[torch.Tensor]:
        """All tensors held between steps."""
        return [*self.meter.kept, *self.exact]

    def lowered(self) -> AbstractContextManager[None]:
        """Return a context in which products get a low-precision backward."""
        return intercepting(self.handler)

    def measure(
        self, model: nn.Module, store: ParameterStore, call: Callable[[], WeighedLoss]
    ) -> tuple[VarianceVerdict, str] | None:
        """Compare the exact and the low-precision backward of a micro-batch.

        The comparison changes nothing in the run.

        Returns:
            If the measurement is complete or has failed: the verdict, and the name of the metric
            (`"Adam"` or `"L2"`) that was used. Otherwise None.
        """
        try:
            low = self._measured(partial(gradients, model, store, call))
        except (RuntimeError, ValueError) as error:
            # The measurement failed because of too little memory or a reentrant checkpoint.
            # The run can continue.
            verdict: VarianceVerdict | None = self.meter.failed(
                str(error).strip().partition("\n")[0]
            )
            factors = None
        else:
            factors = adam_factors(store, self.sampled.names)
            verdict = self.meter.take(self.exact, low, factors)
        if verdict is None:
            return None
        self.ratio, self.refused = verdict.ratio, verdict.reason
        return verdict, "L2" if factors is None else "Adam"

    def _measured(
        self, take: Callable[..., list[torch.Tensor | None]]
    ) -> list[torch.Tensor | None]:
        """Return the low-precision gradients, and write the exact gradients to `self.exact`."""
        parameters = self.sampled.parameters
        _copy(take(parameters, loss_scale=_LOSS_SCALE), self.exact)
        # Measurements have separate seeds, so that the run rounds as it would without measurements.
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
        """Return the number of seeds drawn, the meter's state and the last measurement's result."""
        return {
            "drawn": self.seeds.drawn,
            "meter": self.meter.state_dict(),
            "ratio": self.ratio,
            "refused": self.refused,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.seeds.drawn = int(state["drawn"])
        self.meter.load_state_dict(state["meter"])
        self.ratio = None if state["ratio"] is None else float(state["ratio"])
        self.refused = str(state["refused"])


def _copy(gradients: list[torch.Tensor | None], targets: list[torch.Tensor]) -> None:
    for target, gradient in zip(targets, gradients, strict=True):
        target.zero_() if gradient is None else target.copy_(gradient)
