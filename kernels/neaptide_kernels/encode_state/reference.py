"""64 features of a run's histories, in plain torch: what the kernel must compute."""

from __future__ import annotations

import attrs
import torch

from .features import DECAYS, QUANTILES, SHORTEST_SECONDS, SPANS

UNEXPLAINED = 1e-6
"""Added to a span's variance, as a share of that of all: a line fits nothing where all is flat."""


def encode_state(
    losses: torch.Tensor,
    losses_seen: torch.Tensor,
    norms: torch.Tensor,
    norms_seen: torch.Tensor,
    seconds: torch.Tensor,
    seconds_seen: torch.Tensor,
    extras: torch.Tensor,
) -> torch.Tensor:
    """Return the 64 features that `features.FEATURES` names and describes, all of them finite.

    A ring holds sample number `k` at place `k % window`; places that no sample has reached are
    never looked at.

    Args:
        losses: floating `[..., 256]`, a ring; of one run, or with one leading dimension of several.
        losses_seen: int64 `[...]`, how many losses there were since the start; 0-dim for one run.
        norms: `[..., 64]`, gradient norms, a ring.
        norms_seen: int64 `[...]`.
        seconds: `[..., 64]`, times of steps in seconds, a ring.
        seconds_seen: int64 `[...]`.
        extras: `[..., 8]`, see `features.EXTRAS`.

    Returns:
        `[..., 64]`, float32, or float64 for float64.
    """
    features = torch.cat(
        [
            _of_losses(_window(losses, losses_seen)),
            _of_norms(_window(norms, norms_seen)),
            _of_seconds(_window(seconds, seconds_seen)),
            torch.where(extras.isfinite(), extras, 0),
        ],
        -1,
    )
    return features.to(torch.promote_types(losses.dtype, torch.float32))


@attrs.frozen(eq=False)
class _Window:
    """Samples by age, newest first: `[..., window]` each, and `[..., 1]` what is of them all."""

    raw: torch.Tensor
    """Finite; 0 where there is none."""
    valid: torch.Tensor
    filled: torch.Tensor
    """How many places samples have reached."""
    unit: torch.Tensor
    """A power of two near the largest magnitude: what the following are divided by."""
    last: torch.Tensor
    """The newest sample."""
    away: torch.Tensor
    """How far samples are from the newest one, which is exact for neighbours of like size."""
    mean: torch.Tensor
    """Of `away`."""
    deviation: torch.Tensor
    """`away - mean`; 0 where there is no sample."""
    std: torch.Tensor

    @property
    def age(self) -> torch.Tensor:
        return torch.arange(self.raw.shape[-1], device=self.raw.device)

    def level(self, number: torch.Tensor) -> torch.Tensor:
        """Return the level of `number`, which is in units; 0 where there is no sample."""
        most = torch.finfo(number.dtype).max
        number = (number * self.unit).clamp(-most, most)
        return self.where_any(_level(number))

    def where_any(self, number: torch.Tensor) -> torch.Tensor:
        return torch.where(self.valid.any(-1, keepdim=True), number, 0)

    def by_std(self, number: torch.Tensor) -> torch.Tensor:
        return _over(number, self.std)

    def variation(self) -> torch.Tensor:
        return _over(self.std, self.std + (self.last + self.mean).abs())

    def presence(self) -> list[torch.Tensor]:
        """Return the share of places with a finite sample, and that of samples without one."""
        count = self.valid.sum(-1, keepdim=True)
        broken = _over(self.filled - count, self.filled)
        return [count / self.raw.shape[-1], broken]


def _window(ring: torch.Tensor, seen: torch.Tensor) -> _Window:
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
    mean = _mean(away, valid)
    deviation = torch.where(valid, away - mean, 0)
    std = _mean(deviation * deviation, valid).sqrt()
    return _Window(raw, valid, filled, unit, last, away, mean, deviation, std)


def _of_losses(losses: _Window) -> torch.Tensor:
    last, mean = losses.last, losses.mean
    z = losses.by_std(losses.deviation)
    quantiles = _quantiles(losses)
    count = losses.valid.sum(-1, keepdim=True)
    least, largest, since = _extremes(losses)
    below = (losses.valid & (losses.away < 0)).sum(-1, keepdim=True)
    equal = (losses.valid & (losses.away == 0)).sum(-1, keepdim=True)
    spans = [losses.valid & (losses.age < span) for span in SPANS]
    trends = [_trend(losses, span) for span in spans]
    features = [
        *losses.presence(),
        losses.level(last),
        losses.level(last + mean),
        losses.level(last + quantiles[..., 3:4]),
        losses.level(last + least),
        losses.level(last + largest),
        losses.level(losses.std),
        losses.variation(),
        _mean(z**3, losses.valid),
        torch.where(losses.std > 0, _level(_mean(z**4, losses.valid) - 3), 0),
        losses.by_std(losses.where_any(quantiles - mean)),
        losses.by_std(-mean),
        _over(2 * below + equal - 1, 2 * (count - 1)),
        since,
        *(_mean(z, span) for span in spans[:3]),
        *(losses.by_std(_std(losses.deviation, span)) for span in spans[:3]),
        *(rise for rise, _ in trends),
        *(fit for _, fit in trends),
        _bend(losses, z),
        *(_mean(z, losses.valid * decay ** losses.age.to(mean.dtype)) for decay in DECAYS),
        *_of_neighbours(losses),
        _echo(losses, z, 1),
        _echo(losses, z, 8),
    ]
    return torch.cat([feature.to(mean.dtype) for feature in features], -1)


def _of_norms(norms: _Window) -> torch.Tensor:
    features = [
        *norms.presence(),
        norms.level(norms.last),
        norms.level(norms.last + norms.mean),
        norms.variation(),
        norms.by_std(-norms.mean),
        _trend(norms, norms.valid)[0],
    ]
    return torch.cat([feature.to(norms.mean.dtype) for feature in features], -1)


def _of_seconds(seconds: _Window) -> torch.Tensor:
    mean = (seconds.last + seconds.mean) * seconds.unit
    most = torch.finfo(mean.dtype).max
    log = mean.clamp(SHORTEST_SECONDS, most).log()
    features = [*seconds.presence(), seconds.where_any(log), seconds.variation()]
    return torch.cat([feature.to(mean.dtype) for feature in features], -1)


def _quantiles(window: _Window) -> torch.Tensor:
    """Return the quantiles of `away`, `[..., 7]`."""
    ordered = torch.where(window.valid, window.away, torch.inf).sort(-1).values
    highest = (window.valid.sum(-1, keepdim=True) - 1).clamp(min=0)
    shares = torch.tensor(QUANTILES, dtype=window.away.dtype, device=window.away.device)
    place = shares * highest
    below = place.floor().long()
    above = torch.minimum(below + 1, highest)
    low, high = ordered.gather(-1, below), ordered.gather(-1, above)
    return window.where_any(torch.lerp(low, high, place - below))


def _extremes(window: _Window) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return least and largest of `away`, and how long ago the least was, by the window."""
    size = window.raw.shape[-1]
    least = torch.where(window.valid, window.away, torch.inf).amin(-1, keepdim=True)
    largest = torch.where(window.valid, window.away, -torch.inf).amax(-1, keepdim=True)
    at = window.valid & (window.away == least)
    age = torch.where(at, window.age, size).amin(-1, keepdim=True)
    return window.where_any(least), window.where_any(largest), window.where_any(age / size)


def _trend(window: _Window, span: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rise of the line over a span in stds of all, and the share that it explains."""
    time = -window.age.to(window.away.dtype) * span
    time = torch.where(span, time - _mean(time, span), 0)
    deviation = torch.where(span, window.deviation - _mean(window.deviation, span), 0)
    along = _mean(time * deviation, span)
    of_time, of_losses = _mean(time * time, span), _mean(deviation * deviation, span)
    rise = window.by_std(_over(along * 12**0.5, of_time.sqrt()))
    variance = of_losses + UNEXPLAINED * window.std**2
    return rise, _over(along * along, of_time * variance)


def _bend(window: _Window, z: torch.Tensor) -> torch.Tensor:
    third = 3 * window.age // window.filled.clamp(min=1)
    parts = [window.valid & (third == place) for place in range(3)]
    newest, middle, oldest = (_mean(z, part) for part in parts)
    whole = torch.stack([part.any(-1, keepdim=True) for part in parts]).all(0)
    return torch.where(whole, newest - 2 * middle + oldest, 0)


def _of_neighbours(window: _Window) -> list[torch.Tensor]:
    """Return falls, falls among the newest 8, roughness and turns."""
    newer, older = window.raw[..., :-1], window.raw[..., 1:]
    pairs = window.valid[..., :-1] & window.valid[..., 1:]
    falls, climbs = pairs & (newer < older), pairs & (newer > older)
    newest = window.age[:-1] < SPANS[0] - 1
    distance = (window.away[..., :-1] - window.away[..., 1:]).abs()
    turns = (falls[..., :-1] & climbs[..., 1:]) | (climbs[..., :-1] & falls[..., 1:])
    return [
        _share(falls, pairs),
        _share(falls & newest, pairs & newest),
        window.by_std(_mean(distance, pairs)),
        _share(turns, pairs[..., :-1] & pairs[..., 1:]),
    ]


def _echo(window: _Window, z: torch.Tensor, apart: int) -> torch.Tensor:
    pairs = window.valid[..., :-apart] & window.valid[..., apart:]
    return _mean(z[..., :-apart] * z[..., apart:], pairs)


def _level(number: torch.Tensor) -> torch.Tensor:
    return number.sign() * number.abs().log1p()


def _mean(numbers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return _over((numbers * weights).sum(-1, keepdim=True), weights.sum(-1, keepdim=True))


def _std(numbers: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
    deviation = numbers - _mean(numbers, span)
    return _mean(deviation * deviation, span).sqrt()


def _share(some: torch.Tensor, all_of_them: torch.Tensor) -> torch.Tensor:
    return _over(some.sum(-1, keepdim=True), all_of_them.sum(-1, keepdim=True))


def _over(number: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """Return the quotient, in float64 of counts; 0 for a divisor of 0 or less."""
    if not number.is_floating_point():
        number = number.double()
    return torch.where(divisor > 0, number / torch.where(divisor > 0, divisor, 1), 0)
