"""Time providers by the median of repeated calls."""

from __future__ import annotations

import statistics
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

from neaptide.devices import api_of

from .agreement import copied, first_disagreement
from .faults import KernelWarning
from .isolation import isolated
from .provider import REFERENCE
from .timings import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .provider import Provider
    from .query import Query
    from .spec import OpSpec

_WARM_UP = 3
_SECONDS = 0.1
_AT_LEAST = 5


def built(providers: Iterable[Provider], query: Query) -> dict[str, str]:
    """Build what providers need for a call; return the providers that cannot, with the reasons."""
    failed = {}
    for provider in providers:
        if provider.build is None:
            continue
        try:
            provider.build(query)
        except Exception as error:  # noqa: BLE001 - a compiler, or a stranger's code
            said = " ".join(str(error).split())
            failed[provider.name] = f"it was not built: {type(error).__name__}: {said}"
    return failed


def time_providers(
    spec: OpSpec, providers: Iterable[Provider], query: Query, arguments: Sequence[Any]
) -> tuple[tuple[Timing, ...], dict[str, str]]:
    """Time each provider in each of its configs; return the timings and the refused providers.

    The fastest timing is first. A provider is refused if it disagrees with the reference on the
    op's samples, or if it fails on these arguments, for example for lack of memory. The timed
    calls write to the given arguments. The results of these calls are not used.
    """
    device = _device(arguments)
    timings: list[Timing] = []
    refused: dict[str, str] = {}
    with isolated(device):
        for provider in providers:
            for config in provider.configs(query) or ({},):
                wrong = first_disagreement(spec, provider, query, config)
                if wrong:
                    refused[provider.name] = wrong
                    continue
                try:
                    seconds = median_seconds(
                        lambda run=provider.run, config=config: run(*arguments, **config),  # type: ignore[misc]  # bound at once
                        device,
                    )
                except Exception as error:
                    if provider.name == REFERENCE:
                        raise
                    said = " ".join(str(error).split())
                    refused[provider.name] = f"raised {type(error).__name__}: {said}"
                    continue
                timings.append(Timing(provider.name, provider.version, config, seconds))
    return tuple(sorted(timings, key=lambda timing: timing.seconds)), refused


def tuned(
    spec: OpSpec, providers: Iterable[Provider], query: Query, arguments: Sequence[Any]
) -> tuple[Timing, ...]:
    """Time providers on copies of a call's arguments; warn of each provider that fails."""
    measured, refused = time_providers(spec, providers, query, copied(arguments))
    timed = {timing.provider for timing in measured}
    for name, reason in refused.items():
        if name not in timed:
            msg = f"kernel provider {name!r} of {query.op!r} is left out of tuning: {reason}"
            warnings.warn(msg, KernelWarning, stacklevel=2)
    return measured


def median_seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Return the median time of one call, in seconds.

    On an accelerator, its events measure the time, and it is idle before each call.
    """
    for _ in range(_WARM_UP):
        run()
    once = _timed(run, device)
    return statistics.median(
        _timed(run, device)
        for _ in range(max(_AT_LEAST, min(200, int(_SECONDS / max(once, 1e-9)))))
    )


def _timed(run: Callable[[], Any], device: torch.device) -> float:
    if device.type != "cpu":
        start, end = (api_of(device).Event(enable_timing=True) for _ in range(2))
        torch.accelerator.synchronize(device)
        start.record()
        run()
        end.record()
        torch.accelerator.synchronize(device)
        return float(start.elapsed_time(end)) / 1e3
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _device(arguments: Sequence[Any]) -> torch.device:
    for value in arguments:
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, torch.Tensor):
                return each.device
    return torch.device("cpu")
