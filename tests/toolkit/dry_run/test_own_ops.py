"""Neaptide's own ops in a plan: which provider runs where, and what it takes there."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest
import torch

from neaptide_kernels import adam8bit
from neaptide_toolkit.dry_run.allocations import DEVICE, AllocationLog
from neaptide_toolkit.dry_run.clock import Clock
from neaptide_toolkit.dry_run.own.ops import OwnOps
from neaptide_toolkit.dry_run.unknown import Unknown
from neaptide_toolkit.machine import profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICE_SIZES, HOST_SIZES = (2**18, 2**16), (2**17, 2**19)


def planned(places: Sequence[tuple[int, bool]]) -> tuple[float, float, int]:
    """Return seconds of the device and of the host, and the device's peak, of an update.

    `places` are weights: elements, and whether they are on the device.
    """
    log = AllocationLog(accelerated=True)
    clock = Clock([profiles.load("rtx4090").rates], log.is_on_host)
    own = OwnOps(lambda one: not log.is_on_host(one))
    mode = Unknown(log.made, clock.ran, lambda *call: own.workspace(*call[:2]), own.plain)
    rows = []
    for elements, on_device in places:
        weight = torch.zeros(elements)
        rows.append([weight, torch.zeros(elements), *adam8bit.new_state(weight)])
        for one in rows[-1]:
            log.made(one.untyped_storage(), device=DEVICE if on_device else torch.device("cpu"))
        mode.forget(rows[-1][:-1])
        rows[-1][-1].fill_(1)
    lists = [list(column) for column in zip(*rows, strict=True)]
    log.during = "update"
    before = sum(change.bytes for change in log.changes if change.piece.where == "device")
    with mode:
        adam8bit.adam8bit_step(*lists, torch.tensor(1e-3))
    peaks = log.peaks("device")
    peak = peaks["update"].bytes - before if "update" in peaks else 0
    busy = clock.spent()[0].busy
    return busy.get("compute", 0.0), busy.get("host", 0.0), peak


def test_an_update_of_weights_on_both_sides_is_an_update_on_each() -> None:
    there = [(size, True) for size in DEVICE_SIZES]
    here = [(size, False) for size in HOST_SIZES]
    mixed = planned([*chain.from_iterable(zip(there, here, strict=True))])
    on_device, on_host = planned(there), planned(here)
    assert mixed[:2] == pytest.approx((on_device[0], on_device[1] + on_host[1]))
    assert mixed[2] == on_device[2]


def test_the_host_reads_and_writes_its_part_once() -> None:
    pytest.importorskip("numba")
    _, seconds, peak = planned([(size, False) for size in HOST_SIZES])
    elements = sum(HOST_SIZES)
    rate = profiles.load("rtx4090").rates.host_bandwidth
    assert peak == 0
    assert elements * 10 / rate < seconds < elements * 30 / rate
