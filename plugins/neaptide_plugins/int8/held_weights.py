"""Replaces weights by int8 codes for a limited time, and evicts the full weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs
import torch

from .calibration import Calibration, calibrated
from .scheme import Ranges, Scheme, WeightCodes, encode
from .weight import Int8Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager

    from .config import Int8Config
    from .targets import Target


class Weights(Protocol):
    """Access to the full weights of targets."""

    def lent(self, target: Target) -> AbstractContextManager[torch.Tensor]:
        """Return a context in which a target's weight can be read on the device."""

    def evict(self, target: Target) -> Callable[[], None]:
        """Evict a target's weight; return the function that ends the eviction."""

    def stored(self, target: Target, codes: WeightCodes) -> WeightCodes:
        """Return the codes on the device, or in RAM if the full weight is stored there."""


@attrs.frozen(kw_only=True)
class Quantizer:
    """The encoding of weights."""

    scheme: Scheme
    calibration: Calibration | None
    """How the fixed ranges are measured. If None, every encoding measures the ranges again."""
    percentile: float

    @classmethod
    def of(cls, config: Int8Config) -> Quantizer:
        """Return the encoding that the settings describe."""
        return cls(
            scheme=Scheme.of(config),
            calibration=None if config.dynamic_range else config.calibration,
            percentile=config.percentile,
        )

    def ranges(self, weight: torch.Tensor, channel: int) -> Ranges | None:
        """Return the fixed ranges measured on `weight`; None if `calibration` is None."""
        if self.calibration is None:
            return None
        return calibrated(
            weight, self.scheme, self.calibration, percentile=self.percentile, channel=channel
        )


@attrs.define(eq=False)
class _HeldWeight:
    target: Target
    weight: Int8Weight
    ranges: Ranges | None
    back: Callable[[], None]
    fresh: bool = True


class HeldWeights:
    """Makes modules compute with int8 weights between `hold` and `release`.

    Args:
        targets: the weights.
        quantizer: the encoding of the weights.
        device: the device of the computation.
        weights: access to the full weights.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        quantizer: Quantizer,
        device: torch.device,
        weights: Weights,
    ) -> None:
        self.targets = list(targets)
        self.errors: dict[str, float] = {}
        """Relative root mean square error of each weight, from the last measurement."""
        self._quantizer = quantizer
        self._device = device
        self._weights = weights
        self._held: dict[str, _HeldWeight] = {}

    @property
    def held(self) -> bool:
        """True if at least one weight is int8 now."""
        return bool(self._held)

    def hold(self, *, exempt: Collection[str] = (), measured: bool = False) -> None:
        """Replace the weights by codes, one weight after the other.

        Args:
            exempt: names of targets that are not quantized.
            measured: whether to measure the errors of the encoded weights.
        """
        if measured:
            self.errors = {}
        try:
            for target in self.targets:
                if target.name not in exempt and target.name not in self._held:
                    self._take(target, measured=measured)
        except BaseException:
            self.release()
            raise

    def _take(self, target: Target, *, measured: bool) -> None:
        codes, ranges = self._first_codes(target, measured=measured)
        weight = Int8Weight(codes, target.parameter, self._device)
        # This record is made first. After an error, `release` undoes the steps made so far.
        held = self._held[target.name] = _HeldWeight(target, weight, ranges, _nothing)
        for module, attribute in target.sites:
            module._parameters[attribute] = weight  # type: ignore[assignment]  # no parameter: it is not trained
        held.back = self._weights.evict(target)

    def _first_codes(self, target: Target, *, measured: bool) -> tuple[WeightCodes, Ranges | None]:
        with self._weights.lent(target) as full:
            ranges = self._quantizer.ranges(full, target.channel)
            codes = self._encoded(target, full, ranges)
            if measured:
                self.errors[target.name] = relative_error(full, codes)
        return codes, ranges

    def _encoded(self, target: Target, full: torch.Tensor, ranges: Ranges | None) -> WeightCodes:
        codes = encode(full, self._quantizer.scheme, target.channel, ranges)
        return self._weights.stored(target, codes)

    def outdate(self, name: str) -> None:
        """Record that the full weight of a target has changed."""
        if name in self._held:
            self._held[name].fresh = False

    def refresh(self) -> None:
        """Encode again all weights that changed since their last encoding."""
        for held in self._held.values():
            if not held.fresh:
                with self._weights.lent(held.target) as full:
                    held.weight.codes = self._encoded(held.target, full, held.ranges)
                held.fresh = True

    def release(self) -> None:
        """Restore the full weights, including all values written to them since `hold`.

        If a weight cannot be restored, the error is raised after all other weights are restored. A
        second call then tries again to restore the failed weights.
        """
        failed: BaseException | None = None
        for name, held in reversed(list(self._held.items())):
            try:
                held.back()
            except BaseException as error:  # noqa: BLE001 - raised below
                failed = failed or error
                continue
            for module, attribute in held.target.sites:
                module._parameters[attribute] = held.target.parameter
            del self._held[name]
        if failed is not None:
            raise failed


def relative_error(full: torch.Tensor, codes: WeightCodes) -> float:
    """Return the norm of the error divided by the norm of the weight; 0 for a weight of zeros."""
    lost = codes.to(full.device).decode(torch.float32) - full.to(torch.float32)
    norm = torch.linalg.vector_norm(full.to(torch.float32))
    return float(torch.linalg.vector_norm(lost) / norm.clamp(min=torch.finfo(norm.dtype).tiny))


def _nothing() -> None:
    """Do nothing, because the weight is not evicted yet."""
