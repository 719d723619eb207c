"""The 64 features of a run's histories in plain torch: the reference for the kernel."""

from __future__ import annotations

import torch

from .features import DECAYS, QUANTILES, SHORTEST_SECONDS, SPANS
from .loss_window import LossWindow, log_level, mean_of, quotient, window_of

UNEXPLAINED = 1e-6
"""This share of the total variance is added to a span's variance. So the fit of a line to a
constant span is 0."""


def encode_state(
    losses: torch.Tensor,
    losses_seen: torch.Tensor,
    norms: torch.Tensor,
    norms_seen: torch.Tensor,
    seconds: torch.Tensor,
    seconds_seen: torch.Tensor,
    extras: torch.Tensor,
) -> torch.Tensor:
    """Return the 64 features listed in `features.FEATURES`; all features are finite.

    A ring (buffer) stores sample number `k` at place `k % window`. Empty places are ignored.

    Args:
        losses: floating `[..., 256]`, a ring. One leading dimension stands for several runs.
        losses_seen: int64 `[...]`, number of losses since the start; 0-dim for a single run.
        norms: `[..., 64]`, gradient norms, a ring.
        norms_seen: int64 `[...]`.
        seconds: `[..., 64]`, times of steps in seconds, a ring.
        seconds_seen: int64 `[...]`.
        extras: `[..., 8]`, see `features.EXTRAS`.

    Returns:
        `[..., 64]`: float64 for float64 losses, else float32.
    """
    features = torch.cat(
        [
            _of_losses(window_of(losses, losses_seen)),
            _of_norms(window_of(norms, norms_seen)),
            _of_seconds(window_of(seconds, seconds_seen)),
            torch.where(extras.isfinite(), extras, 0),
        ],
        -1,
    )
    return features.to(torch.promote_types(losses.dtype, torch.float32))


def _of_losses(losses: LossWindow) -> torch.Tensor:
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
        mean_of(z**3, losses.valid),
        torch.where(losses.std > 0, log_level(mean_of(z**4, losses.valid) - 3), 0),
        losses.by_std(losses.where_any(quantiles - mean)),
        losses.by_std(-mean),
        quotient(2 * below + equal - 1, 2 * (count - 1)),
        since,
        *(mean_of(z, span) for span in spans[:3]),
        *(losses.by_std(_std(losses.deviation, span)) for span in spans[:3]),
        *(rise for rise, _ in trends),
        *(fit for _, fit in trends),
        _bend(losses, z),
        *(mean_of(z, losses.valid * decay ** losses.age.to(mean.dtype)) for decay in DECAYS),
        *_of_neighbours(losses),
        _echo(losses, z, 1),
        _echo(losses, z, 8),
    ]
    return torch.cat([feature.to(mean.dtype) for feature in features], -1)


def _of_norms(norms: LossWindow) -> torch.Tensor:
    features = [
        *norms.presence(),
        norms.level(norms.last),
        norms.level(norms.last + norms.mean),
        norms.variation(),
        norms.by_std(-norms.mean),
        _trend(norms, norms.valid)[0],
    ]
    return torch.cat([feature.to(norms.mean.dtype) for feature in features], -1)


def _of_seconds(seconds: LossWindow) -> torch.Tensor:
    mean = (seconds.last + seconds.mean) * seconds.unit
    most = torch.finfo(mean.dtype).max
    log = mean.clamp(SHORTEST_SECONDS, most).log()
    features = [*seconds.presence(), seconds.where_any(log), seconds.variation()]
    return torch.cat([feature.to(mean.dtype) for feature in features], -1)


def _quantiles(window: LossWindow) -> torch.Tensor:
    """Return seven quantiles of `window.away`, `[..., 7]`."""
    ordered = torch.where(window.valid, window.away, torch.inf).sort(-1).values
    highest = (window.valid.sum(-1, keepdim=True) - 1).clamp(min=0)
    shares = torch.tensor(QUANTILES, dtype=window.away.dtype, device=window.away.device)
    place = shares * highest
    below = place.floor().long()
    above = torch.minimum(below + 1, highest)
    low, high = ordered.gather(-1, below), ordered.gather(-1, above)
    return window.where_any(torch.lerp(low, high, place - below))


def _extremes(window: LossWindow) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the least and the largest value of `window.away`, and the age of the least sample.

    The age is divided by the window's length.
    """
    size = window.raw.shape[-1]
    least = torch.where(window.valid, window.away, torch.inf).amin(-1, keepdim=True)
    largest = torch.where(window.valid, window.away, -torch.inf).amax(-1, keepdim=True)
    at = window.valid & (window.away == least)
    age = torch.where(at, window.age, size).amin(-1, keepdim=True)
    return window.where_any(least), window.where_any(largest), window.where_any(age / size)


def _trend(window: LossWindow, span: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rise and the fit of the least-squares line over a span.

    The rise is in standard deviations of the whole window. The fit is the share of the
    span's variance that the line explains.
    """
    time = -window.age.to(window.away.dtype) * span
    time = torch.where(span, time - mean_of(time, span), 0)
    deviation = torch.where(span, window.deviation - mean_of(window.deviation, span), 0)
    along = mean_of(time * deviation, span)
    of_time, of_losses = mean_of(time * time, span), mean_of(deviation * deviation, span)
    rise = window.by_std(quotient(along * 12**0.5, of_time.sqrt()))
    variance = of_losses + UNEXPLAINED * window.std**2
    return rise, quotient(along * along, of_time * variance)


def _bend(window: LossWindow, z: torch.Tensor) -> torch.Tensor:
    third = 3 * window.age // window.filled.clamp(min=1)
    parts = [window.valid & (third == place) for place in range(3)]
    newest, middle, oldest = (mean_of(z, part) for part in parts)
    whole = torch.stack([part.any(-1, keepdim=True) for part in parts]).all(0)
    return torch.where(whole, newest - 2 * middle + oldest, 0)


def _of_neighbours(window: LossWindow) -> list[torch.Tensor]:
    """Return the features `loss_falls`, `loss_falls_8`, `loss_roughness` and `loss_turns`."""
    newer, older = window.raw[..., :-1], window.raw[..., 1:]
    pairs = window.valid[..., :-1] & window.valid[..., 1:]
    falls, climbs = pairs & (newer < older), pairs & (newer > older)
    newest = window.age[:-1] < SPANS[0] - 1
    distance = (window.away[..., :-1] - window.away[..., 1:]).abs()
    turns = (falls[..., :-1] & climbs[..., 1:]) | (climbs[..., :-1] & falls[..., 1:])
    return [
        _share(falls, pairs),
        _share(falls & newest, pairs & newest),
        window.by_std(mean_of(distance, pairs)),
        _share(turns, pairs[..., :-1] & pairs[..., 1:]),
    ]


def _echo(window: LossWindow, z: torch.Tensor, apart: int) -> torch.Tensor:
    pairs = window.valid[..., :-apart] & window.valid[..., apart:]
    return mean_of(z[..., :-apart] * z[..., apart:], pairs)


def _std(numbers: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
    deviation = numbers - mean_of(numbers, span)
    return mean_of(deviation * deviation, span).sqrt()


def _share(some: torch.Tensor, all_of_them: torch.Tensor) -> torch.Tensor:
    return quotient(some.sum(-1, keepdim=True), all_of_them.sum(-1, keepdim=True))
