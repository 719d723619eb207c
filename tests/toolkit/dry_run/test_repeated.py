"""Equal parts of a large tensor, and equal tensors: two stand for all, in memory and in time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide_kernels.adamw_split import split_master
from neaptide_kernels.lion8bit.reference import lion8bit_step
from neaptide_kernels.parts import each_row, parts_by, parts_of, slices
from neaptide_kernels.state_codes import blocks_of
from neaptide_toolkit.dry_run.allocations import AllocationLog
from neaptide_toolkit.dry_run.clock import Clock
from neaptide_toolkit.dry_run.own.parts import two_parts, two_rows
from neaptide_toolkit.dry_run.unknown import Unknown
from neaptide_toolkit.machine import profiles
from neaptide_toolkit.tensors import nested_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide_kernels.parts import Parts, Rows

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
        self.clock = Clock([profiles.load("rtx4090").rates], self.log.is_on_host)
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
    monkeypatch.setattr(split_master, "LARGE_CHUNK", SIZE)
    every, two = Run(every=True), Run()
    for run in (every, two):
        run.split_and_join(whole * SIZE + rest)
    assert two.log.peaks("device") == every.log.peaks("device")
    (times,), (expected,) = two.clock.spent(), every.clock.spent()
    assert times.seconds == pytest.approx(expected.seconds, rel=1e-9)
    assert times.busy == pytest.approx(expected.busy, rel=1e-9)
    if whole > 2:
        assert len(two.log.changes) < len(every.log.changes)


def test_known_values_are_computed_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_master, "CHUNK", SIZE)
    monkeypatch.setattr(split_master, "LARGE_CHUNK", SIZE)
    master = torch.randn(5 * SIZE)
    run = Run()
    with run.mode, parts_by(run.parts):
        joined = split_master.join(*split_master.split(master))
    assert torch.equal(joined, master)


@pytest.mark.parametrize("accelerated", [False, True])
def test_an_update_of_all_tensors_is_that_of_two_of_each_kind(*, accelerated: bool) -> None:
    """Of tensors of three shapes: many, two and one."""
    sizes = [(3, 256), (512,), (3, 256), (40, 512), (3, 256), (512,), (3, 256), (3, 256)]

    def stepped(run: Run, rows: Rows) -> Run:
        params = [torch.zeros(size, dtype=torch.bfloat16) for size in sizes]
        state = [
            [torch.zeros(math.prod(size), dtype=torch.uint8) for size in sizes],
            [torch.zeros(blocks_of(math.prod(size))) for size in sizes],
        ]
        lists = [params, [torch.zeros_like(one) for one in params], *state]
        for one in nested_tensors(lists):
            run.log.made(one.untyped_storage())
            run.mode.forget([one])
        steps = [torch.ones(()) for _ in sizes]
        with run.mode, parts_by(run.parts, rows):
            run.log.during = "update"
            lion8bit_step(*lists, steps, torch.tensor(0.1))
        return run

    every = stepped(Run(accelerated=accelerated), each_row)
    run = Run(accelerated=accelerated)
    two = stepped(run, two_rows(run.log.is_on_host, run.mode.forget, run.clock.times))
    peaks = (run.log.peaks("device")["update"].bytes for run in (two, every))
    assert next(peaks) == pytest.approx(next(peaks), rel=2e-3)  # the row before has another size
    (times,), (expected,) = two.clock.spent(), every.clock.spent()
    assert times.seconds == pytest.approx(expected.seconds, rel=3e-2)  # a GPU runs behind the host
    assert times.busy == pytest.approx(expected.busy, rel=1e-5)
    assert len(two.log.changes) < len(every.log.changes)


def test_a_tensor_of_the_accelerator_has_its_larger_parts() -> None:
    run = Run(accelerated=True)
    on_host, on_device = torch.empty(8), torch.empty(8)
    run.log.made(on_host.untyped_storage(), device=torch.device("cpu"))
    run.log.made(on_device.untyped_storage(), device=torch.device("cpu", 0))
    assert [*run.two(on_host, 4, 8)] == [*slices(8, 4)]
    assert [*run.two(on_device, 4, 8)] == [*slices(8, 8)]
