"""Sorts the samples of a ring buffer by age, and computes the statistics for the features."""

from __future__ import annotations

import attrs
import torch


@attrs.frozen(eq=False)
class LossWindow:
    """The samples `[..., window]`, newest first. Also the statistics of the samples, `[..., 1]`."""

    raw: torch.Tensor
    """The samples; missing samples and samples that are not finite are 0."""
    valid: torch.Tensor
    filled: torch.Tensor
    """Number of places that contain a sample."""
    unit: torch.Tensor
    """A power of two near the largest magnitude; all following values are divided by this unit."""
    last: torch.Tensor
    """The newest sample."""
    away: torch.Tensor
    """Each sample minus the newest sample; exact if both are of similar size."""
    mean: torch.Tensor
    """Mean of `away`."""
    deviation: torch.Tensor
    """`away - mean`; 0 for missing samples."""
    std: torch.Tensor

    @property
    def age(self) -> torch.Tensor:
        """For each sample, the number of newer samples, `[window]`."""
        return torch.arange(self.raw.shape[-1], device=self.raw.device)

    def level(self, number: torch.Tensor) -> torch.Tensor:
        """Return the level of `number`; 0 if there is no sample.

        `number` was divided by `self.unit`, so this method first multiplies it by `self.unit`.
        """
        most = torch.finfo(number.dtype).max
        number = (number * self.unit).clamp(-most, most)
        return self.where_any(log_level(number))

    def where_any(self, number: torch.Tensor) -> torch.Tensor:
        """Return `number`, or 0 if there is no sample."""
        return torch.where(self.valid.any(-1, keepdim=True), number, 0)

    def by_std(self, number: torch.Tensor) -> torch.Tensor:
        """Return `number` in standard deviations; 0 if all samples are equal."""
        return quotient(number, self.std)

    def variation(self) -> torch.Tensor:
        """Return `std / (std + |mean|)`."""
        return quotient(self.std, self.std + (self.last + self.mean).abs())

    def presence(self) -> list[torch.Tensor]:
        """Return the share of finite samples and the share of broken samples.

        The first share is the number of finite samples / the window's length. The second share is
        the number of samples that are not finite / the number of samples.
        """
        count = self.valid.sum(-1, keepdim=True)
        broken = quotient(self.filled - count, self.filled)
        return [count / self.raw.shape[-1], broken]


def window_of(ring: torch.Tensor, seen: torch.Tensor) -> LossWindow:
    """Return the samples of a ring; `seen` is the number of samples since the start."""
    size = ring.shape[-1]
    age = torch.arange(size, device=ring.device)
    seen = seen[..., None]
    raw = ring.to(torch.promote_types(ring.dtype, torch.float32))
    raw = raw.gather(-1, (seen - 1 - age) % size)
    filled = seen.clamp(0, size)
    valid = (age < filled) & raw.isfinite()
    raw = torch.where(valid, raw, 0)
    largest = raw.abs().amax(-1, keepdim=True)
    most = 1022 if raw.dtype == torch.float64 else 126
    exponent = torch.frexp(largest).exponent.clamp(-most, most)
    unit = torch.ldexp(torch.ones_like(largest), exponent)
    scaled = torch.ldexp(raw, -exponent)
    newest = torch.where(valid, age, size - 1).amin(-1, keepdim=True)
    last = scaled.gather(-1, newest)
    away = torch.where(valid, scaled - last, 0)
    mean = mean_of(away, valid)
    deviation = torch.where(valid, away - mean, 0)
    std = mean_of(deviation * deviation, valid).sqrt()
    return LossWindow(raw, valid, filled, unit, last, away, mean, deviation, std)


def log_level(number: torch.Tensor) -> torch.Tensor:
    """Return `log(1 + |number|)` with the sign of `number`."""
    return number.sign() * number.abs().log1p()


def mean_of(numbers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean, `[..., 1]`; 0 if all weights are 0."""
    return quotient((numbers * weights).sum(-1, keepdim=True), weights.sum(-1, keepdim=True))


def quotient(number: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """Return `number / divisor`, or 0 if `divisor` is 0 or less. Integers give float64."""
    if not number.is_floating_point():
        number = number.double()
    return torch.where(divisor > 0, number / torch.where(divisor > 0, divisor, 1), 0)
