"""The op `encode_state` and its providers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import OpSpec, Provider, Sample, define
from neaptide_kernels.support import no_triton, triton_version

from . import reference, tuning
from .features import EXTRAS, FEATURES, LOSSES, NORMS, SECONDS
from .packing import packed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide_kernels.registry import Query, Support

_NAMES = ("losses", "norms", "seconds")
_SIZES = (LOSSES, NORMS, SECONDS, len(EXTRAS))
_ALLOWED = 1e-5
_KINDS = {
    "learning": (0, 1, 2, 7, 40, 256, 300),
    "flat": (40,),
    "broken": (7, 300),
    "huge": (2, 256),
    "tiny": (40,),
    "rough": (300,),
}
"""For each kind of sample history: the numbers of updates that are tried."""


def _check(
    losses: torch.Tensor,
    losses_seen: torch.Tensor,
    norms: torch.Tensor,
    norms_seen: torch.Tensor,
    seconds: torch.Tensor,
    seconds_seen: torch.Tensor,
    extras: torch.Tensor,
) -> None:
    runs = list(losses.shape[:-1])
    if len(runs) > 1 or losses.dtype not in (torch.float32, torch.float64):
        msg = (
            f"losses are {losses.dtype} {list(losses.shape)}; should be torch.float32 [{LOSSES}] "
            f"or [runs, {LOSSES}]"
        )
        raise ValueError(msg)
    rings = (losses, norms, seconds, extras)
    for name, ring, size in zip((*_NAMES, "extras"), rings, _SIZES, strict=True):
        if list(ring.shape) != [*runs, size] or ring.dtype != losses.dtype:
            msg = (
                f"{name} are {ring.dtype} {list(ring.shape)}; should be {losses.dtype} "
                f"{[*runs, size]}"
            )
            raise ValueError(msg)
    for name, seen in zip(_NAMES, (losses_seen, norms_seen, seconds_seen), strict=True):
        if list(seen.shape) != runs or seen.dtype != torch.int64:
            msg = (
                f"{name}_seen is {seen.dtype} {list(seen.shape)}; should be torch.int64 {runs}, a "
                f"count for each run"
            )
            raise ValueError(msg)


def _fake(losses: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return losses.new_empty(*losses.shape[:-1], len(FEATURES))


def _agree(
    expected: Sequence[tuple[str, torch.Tensor]], got: Sequence[tuple[str, torch.Tensor]]
) -> Iterator[str]:
    right, result = expected[0][1], got[0][1]
    off = (result.double() - right).abs() / (1 + right.abs())
    # A comparison with NaN is false, so `~(off <= ...)` reports NaN as an error, too.
    for place in sorted(set((~(off <= _ALLOWED)).nonzero()[:, -1].tolist())):
        yield f"{FEATURES[place]} is off by {float(off[..., place].max()):.2g}"


def histories(kind: str, samples: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return arguments of the op, for one run with `samples` updates.

    Args:
        kind: `"learning"`, `"flat"`, `"broken"` (with NaN and inf), `"huge"`, `"tiny"`, or
            `"rough"` (of many magnitudes and both signs).
        samples: number of losses since the start; the windows contain the newest losses.
        device: device of the tensors.
    """
    generator = torch.Generator().manual_seed(samples)
    noise = torch.randn(max(samples, 1), generator=generator, device="cpu")[:samples]
    steps = torch.arange(samples, device="cpu")
    losses = {
        "learning": 2 + 3 * torch.exp(-steps / 90) + 0.05 * noise,
        "flat": torch.full((samples,), 1.1, device="cpu"),
        "broken": 5 + noise,
        "huge": 3e38 * torch.tanh(noise),
        "tiny": 1e-42 * noise,
        "rough": noise * 10 ** (3 * noise.roll(1)),
    }[kind]
    if kind == "broken":
        losses[::3], losses[1::7], losses[2::11] = torch.nan, torch.inf, -torch.inf
    extras = torch.randn(len(EXTRAS), generator=generator, device="cpu")
    extras[5] = torch.inf if kind == "broken" else 0
    result: list[torch.Tensor] = []
    for size, newest in zip(_SIZES, (losses, losses.abs() ** 0.5, 0.1 + losses / 99), strict=False):
        ring, count = packed(newest.tolist(), size, device)
        # In a full ring, the oldest sample is at the place where the next sample will be written.
        result += [
            ring.roll(samples % size) if samples > size else ring,
            count + max(0, samples - size),
        ]
    return (*result, extras.to(device))


def _samples(device: torch.device) -> Iterator[Sample]:
    for kind, counts in _KINDS.items():
        for samples in counts:
            name = f"{samples} samples, {kind}"
            yield Sample(name=name, arguments=histories(kind, samples, device))
    for runs in (0, 2):
        each = [histories("learning", 50 * run, device) for run in (1, 3)]
        batch = tuple(torch.stack(tensors)[:runs] for tensors in zip(*each, strict=True))
        yield Sample(name=f"{runs} runs", arguments=batch)


def _large(device: torch.device) -> Iterator[Sample]:
    one = histories("learning", 1000, device)
    yield Sample(name="1 run", arguments=one)
    many = tuple(tensor.expand(4096, *tensor.shape).contiguous() for tensor in one)
    yield Sample(name="4096 runs", arguments=many)


def _supports(query: Query) -> Support:
    reason = no_triton(query)
    if reason:
        return reason
    if query["losses"].dtype != torch.float32:
        return "float64 is left to the reference"
    return True


def _traffic(losses: torch.Tensor, *_: Any) -> int:
    runs = losses[..., 0].numel()
    return runs * (4 * (sum(_SIZES) + len(FEATURES)) + 8 * len(_NAMES))


encode_state = define(
    OpSpec(
        name="encode_state",
        summary="64 features of a run's losses, gradient norms and step times",
        reference=reference.encode_state,
        fake=_fake,
        check=_check,
        samples=_samples,
        large=_large,
        traffic=_traffic,
        agree=_agree,
        tolerances={torch.float32: _ALLOWED},
    )
)
"""See `reference.encode_state`."""

TRITON = (
    Provider(
        op="encode_state",
        name="triton",
        run=tuning.encode_state,
        supports=_supports,
        priority=10,
        version=f"{triton_version()}/1",
        configs=tuning.configs,
    ),
)
"""Providers that the plugin `triton-kernels` adds to a run."""
