"""Equal parts of a large tensor: two stand for all, in memory and in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide_kernels.adamw_split import split_master
from neaptide_kernels.parts import parts_by, parts_of, slices
from neaptide_toolkit.dry_run.allocations import AllocationLog
from neaptide_toolkit.dry_run.clock import Clock
from neaptide_toolkit.dry_run.own.parts import two_parts
from neaptide_toolkit.dry_run.unknown import Unknown
from neaptide_toolkit.machine import profiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide_kernels.parts import Parts

SIZE = 1 << 10


@given(elements=st.integers(0, 5 * SIZE), size=st.integers(1, 2 * SIZE))
def test_slices_cover_every_element_once(elements: int, size: int) -> None:
    places = torch.arange(elements)
    parts = [places[part] for part in slices(elements, size)]
    assert all(len(one) == size for one in parts[:-1])
    assert torch.equal(torch.cat([torch.arange(0), *parts]), places)


def test_a_tensor_has_the_parts_of_its_device() -> None:
    assert [*parts_of(torch.empty(5), 2, 5)] == [*slices(5, 2)]
    assert [*parts_of(torch.empty(5, device="meta"), 2, 5)] == [slice(0, 5)]


class Run:
    """Takes operations in a dry run, in all parts or in two."""

    def __init__(self, *, accelerated: bool = False, every: bool = False) -> None:
        self.log = AllocationLog(accelerated=accelerated)
        self.clock = Clock(profiles.load("rtx4090").rates, self.log.is_on_host)
        self.mode = Unknown(self.log.made, self.clock.ran)
        self.two = two_parts(
            self.mode.is_unknown, self.log.is_on_host, self.clock.times, accelerated=accelerated
        )
        self.parts: Parts = self.every if every else self.two

    def every(self, tensor: torch.Tensor, on_cpu: int, _: int) -> Iterator[slice]:
        return slices(tensor.numel(), on_cpu)

    def split_and_join(self, elements: int) -> None:
        with self.mode, parts_by(self.parts):
            master = torch.empty(elements)
            self.mode.forget([master])
            split_master.join(*split_master.split(master))


@pytest.mark.parametrize("rest", [0, 7])
@pytest.mark.parametrize("whole", [1, 2, 3, 40])
def test_memory_and_time_are_those_of_all_parts(
    whole: int, rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_master, "CHUNK", SIZE)
    every, two = Run(every=True), Run()
    for run in (every, two):
        run.split_and_join(whole * SIZE + rest)
    assert two.log.peaks("device") == every.log.peaks("device")
    assert two.clock.now == pytest.approx(every.clock.now, rel=1e-9)
    assert two.clock.busy == pytest.approx(every.clock.busy, rel=1e-9)
    if whole > 2:
        assert len(two.log.changes) < len(every.log.changes)


def test_known_values_are_computed_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_master, "CHUNK", SIZE)
    master = torch.randn(5 * SIZE)
    run = Run()
    with run.mode, parts_by(run.parts):
        joined = split_master.join(*split_master.split(master))
    assert torch.equal(joined, master)


def test_a_tensor_of_the_accelerator_has_its_larger_parts() -> None:
    run = Run(accelerated=True)
    on_host, on_device = torch.empty(8), torch.empty(8)
    run.log.made(on_host.untyped_storage(), device=torch.device("cpu"))
    run.log.made(on_device.untyped_storage(), device=torch.device("cpu", 0))
    assert [*run.two(on_host, 4, 8)] == [*slices(8, 4)]
    assert [*run.two(on_device, 4, 8)] == [*slices(8, 8)]
