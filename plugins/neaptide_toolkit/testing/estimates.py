"""The laws (rules) for `estimate_memory`: estimates must match the bytes held and allocated."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from neaptide.api.parameters import ParameterStore
from neaptide_toolkit.tensors import tensor_bytes

from .failures import require
from .memory_counts import observed
from .subject import STEPS, Subject
from .tiny import STEADY_PREDICTOR, tiny_task

if TYPE_CHECKING:
    from neaptide.api.memory import Moment
    from neaptide.plugin import Plugin

    from .memory_counts import Observed

TOLERANCE = 0.05
FLOOR = 8 << 10
"""Bytes of difference that are always allowed: counters of a few bytes per parameter, and the
rounding to 256 bytes in slabs (host buffers)."""


def estimate_is_measured(subject: Subject) -> None:
    """The bytes that the plugin states for the time between steps match its tensors, within 5 %."""
    task = tiny_task()
    subject.attempt.tries(
        f"train {STEPS} steps, and after each step sum the tensors that the plugin holds"
    )
    with subject.trainer(task) as trainer:
        plugin = trainer.hooks.plugins[subject.spec.name]
        for batch in task.batches[:STEPS]:
            phase = trainer.step(batch).phase.name
            measured = tensor_bytes(_owned(plugin, task.model))
            ledger = trainer.estimate_memory(phase)
            stated = ledger.total(owner=subject.spec.name, moment="update")
            require(
                abs(stated - measured) <= TOLERANCE * max(stated, measured),
                f"in {phase} it estimates {stated} bytes between steps but holds {measured}",
                f"let estimate_memory add the bytes that the plugin holds in {phase}, of kinds and "
                f"at moments that include 'update', and no others",
            )


def estimate_is_allocated(subject: Subject) -> None:
    """In each phase, the bytes that the plugin's estimate adds or moves match the allocated bytes.

    The law compares two runs, with and without the plugin. The difference in allocated bytes must
    equal the difference in the ledgers (the memory estimates), within 5 % and a few KiB.
    """
    subject.attempt.tries(
        "train with and without the plugin, and count the bytes of torch's allocators"
    )
    without = attrs.evolve(subject, spec=STEADY_PREDICTOR, settings={})
    plain = observed(without) if subject.beside else _plain(torch.get_default_dtype())
    own = observed(subject)
    keys = sorted(own.held.keys() & plain.held.keys())
    with_slabs = any(own.held[key].slabs != plain.held[key].slabs for key in keys)
    for key in keys:
        _compare(key, own, plain, with_slabs=with_slabs)


def _compare(key: tuple[str, Moment], own: Observed, plain: Observed, *, with_slabs: bool) -> None:
    held, before = own.held[key], plain.held[key]
    cpu, cuda, slabs = held.cpu - before.cpu, held.cuda - before.cuda, held.slabs - before.slabs
    device, host = (
        now - then for now, then in zip(own.stated(key), plain.stated(key), strict=True)
    )
    if own.device.type != "cpu":
        pairs = {"on the device": (device, cuda), "on the host": (host, cpu + slabs)}
    else:
        # On a CPU one allocator serves both tiers (device and host). Only the bytes of slabs
        # certainly belong to the host.
        pairs = {"on device and host": (device + host, cpu + slabs)}
        if with_slabs:
            outside = own.outside_slabs(key) - plain.outside_slabs(key)
            pairs["on the device"] = (device, cpu - outside)
            pairs["on the host"] = (host, slabs + outside)
    largest = max(map(abs, (device, host, cpu, cuda, slabs)))
    for where, (stated, allocated) in pairs.items():
        require(
            abs(stated - allocated) <= TOLERANCE * largest + FLOOR,
            f"in {key[0]} at {key[1]!r} it states {stated:+} bytes {where}, "
            f"and {allocated:+} are allocated",
            f"let estimate_memory state for {key[0]} the bytes held at {key[1]!r}, on their tier; "
            f"free memory that is no longer needed, also in reference cycles",
        )


@functools.cache
def _plain(dtype: torch.dtype) -> Observed:
    """Return the bytes of a run without the plugin; `dtype` must be torch's default dtype."""
    del dtype  # only a key of the cache: torch's default dtype is already set to it
    return observed(Subject(STEADY_PREDICTOR, {}, ()))


def _owned(plugin: Plugin[Any], model: nn.Module) -> list[torch.Tensor]:
    """Return the tensors reachable from `plugin` that do not belong to the model."""
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    seen: set[int] = set()
    found: list[torch.Tensor] = []
    queue: list[Any] = [plugin]
    while queue:
        value = queue.pop()
        if id(value) in seen or isinstance(
            value, nn.Module | ParameterStore | torch.optim.Optimizer | type | ModuleType
        ):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if id(value) not in own:
                found.append(value)
        elif isinstance(value, Mapping):
            with suppress(NotImplementedError):  # a pool of urllib3 cannot be iterated over
                queue.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            queue.extend(value)
        elif attrs.has(type(value)):
            names = (field.name for field in attrs.fields(type(value)))
            queue.extend(getattr(value, name, None) for name in names)
        elif hasattr(value, "__dict__") and not callable(value):
            queue.extend(vars(value).values())
    return found
