from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
from textwrap import dedent

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide_toolkit.offload import Slab, lies_in_slab, mapped_slabs, slab_bytes

PAGE = mmap.PAGESIZE
MIB = 2**20


@attrs.define
class Driver:
    """Stands for a GPU's driver, which this machine has none of; strict as CUDA's."""

    room: int = 2**62
    ranges: dict[int, int] = attrs.field(factory=dict)
    unregistered: list[int] = attrs.field(factory=list)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        assert address % PAGE == 0
        assert flags == 1
        for start, length in self.ranges.items():
            assert address >= start + length or address + size <= start, "registered twice"
        if sum(self.ranges.values()) + size > self.room:
            return 2
        self.ranges[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.ranges[address]  # fails for what is not registered
        self.unregistered.append(address)
        return 0

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        return {2: "out of memory"}[error]


@pytest.mark.parametrize("size", [0, 1, 255, PAGE, PAGE + 1, 3 * MIB + 7])
def test_a_slab_is_zeros_of_the_exact_size_on_a_page(size: int) -> None:
    flat = Slab(size).flat
    assert (torch.uint8, (size,)) == (flat.dtype, tuple(flat.shape))
    assert size == 0 or flat.data_ptr() % PAGE == 0
    assert not flat.any()
    flat.fill_(7)
    assert 7 * size == int(flat.sum())


def test_without_a_gpu_it_is_pageable_and_nothing_was_refused() -> None:
    slab = Slab.on_host_of(torch.device("cpu"), 100)
    assert (False, None) == (slab.pinned, slab.reason)


@given(
    pages=st.integers(1, 30),
    rest=st.integers(0, PAGE - 1),
    cuts=st.lists(st.integers(0, 31 * PAGE) | st.integers(0, 31).map(PAGE.__mul__), max_size=12),
    piece=st.integers(1, 40 * PAGE),
)
def test_pieces_cover_the_slab_end_at_cuts_and_are_as_few_as_can_be(
    pages: int, rest: int, cuts: list[int], piece: int
) -> None:
    driver = Driver()
    size = pages * PAGE + rest
    slab = Slab(size, cudart=driver, cuts=cuts, piece=piece)
    base = slab.flat.data_ptr()
    starts = sorted(address - base for address in driver.ranges)
    ends = [*starts[1:], size]
    assert slab.pinned
    assert ends == [start + driver.ranges[base + start] for start in starts]
    usable = sorted({cut for cut in cuts if cut % PAGE == 0 and 0 < cut < size} | {0, size})
    assert set(starts) | set(ends) <= set(usable)
    for start, end in zip(starts, ends, strict=True):
        within = [cut for cut in usable if start < cut <= start + piece]
        after = next(cut for cut in usable if cut > start)
        assert end == (max(within) if within else after)


def test_a_driver_that_refuses_leaves_all_of_it_pageable_and_says_why() -> None:
    driver = Driver(room=5 * PAGE)
    cuts = range(0, 8 * PAGE, PAGE)
    slab = Slab(8 * PAGE, cudart=driver, cuts=cuts, piece=2 * PAGE)
    assert not slab.pinned
    assert (
        f"CUDA cannot pin {2 * PAGE} bytes after {4 * PAGE} of {8 * PAGE}: out of memory; "
        "raise `ulimit -l`, or pin less"
    ) == slab.reason
    assert {} == driver.ranges
    slab.flat.fill_(1)
    slab.close()
    del slab
    assert 2 == len(driver.unregistered)


def test_a_closed_slab_is_unregistered_once_no_tensor_uses_it() -> None:
    driver = Driver()
    slab = Slab(3 * PAGE, cudart=driver)
    view = slab.flat[PAGE : PAGE + 8].view(torch.float32)
    slab.flat.fill_(0)
    slab.close()
    assert not slab.pinned
    with pytest.raises(ValueError, match=f"of {3 * PAGE} bytes is closed"):
        slab.flat.sum()
    assert 1 == len(driver.ranges)
    view.fill_(2)
    assert [2, 2] == view.tolist()
    del view
    assert {} == driver.ranges


def test_a_forgotten_slab_is_unregistered() -> None:
    driver = Driver()
    slab = Slab(PAGE, cudart=driver)
    assert 1 == len(driver.ranges)
    del slab
    gc.collect()
    assert {} == driver.ranges


def test_closing_twice_is_closing_once() -> None:
    driver = Driver()
    slab = Slab(PAGE, cudart=driver)
    slab.close()
    slab.close()
    assert 1 == len(driver.unregistered)


def test_what_cannot_be_reserved_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"at least 0 bytes \(got -1\)"):
        Slab(-1)
    with pytest.raises(MemoryError, match=f"cannot reserve {2**60} bytes of RAM: .*ulimit"):
        Slab(2**60)


def test_a_forked_child_has_no_copy_of_pinned_pages_and_has_one_of_others() -> None:
    script = """
        import os, signal, sys
        from neaptide_toolkit.offload import Slab
        class Driver:
            cudaHostRegister = lambda self, *range: 0
            cudaHostUnregister = lambda self, address: 0
        slab = Slab(8192, cudart=Driver() if sys.argv[1] == "pinned" else None)
        slab.flat.fill_(3)
        child = os.fork()
        if not child:
            os._exit(int(slab.flat[5000]))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
    """
    for kind, expected in (("pageable", 3), ("pinned", -11)):
        command = [sys.executable, "-c", dedent(script), kind]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert expected == int(done.stdout)


def test_filling_takes_the_size_and_closing_gives_it_back() -> None:
    script = """
        import sys
        from pathlib import Path
        from neaptide_toolkit.offload import Slab

        def kib(what):
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(what))

        size = 300 * 2**20
        Slab(2**20).flat.fill_(1)
        before = kib("VmRSS")
        slab = Slab(size)
        reserved = kib("VmRSS") - before
        slab.flat.fill_(1)
        filled = kib("VmHWM") - before
        slab.close()
        print(reserved, filled, kib("VmRSS") - before)
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", dedent(script)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    reserved, filled, left = (int(number) / 1024 for number in done.stdout.split())
    assert reserved < 8
    assert 299 < filled < 308
    assert left < 8


def test_slabs_count_as_long_as_anything_lies_in_them() -> None:
    before = mapped_slabs()
    slab, other = Slab(5000), Slab(300)
    inside = slab.flat[256:512]
    assert slab_bytes(before) == 5300
    assert lies_in_slab(inside)
    assert not lies_in_slab(torch.zeros(1))
    slab.close()
    del slab, other
    assert slab_bytes(before) == 5000
    del inside
    assert slab_bytes(before) == 0
