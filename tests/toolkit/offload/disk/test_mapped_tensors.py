"""Mapped tensors keep their values, whichever way they are read, and the page cache stays empty."""

from __future__ import annotations

import errno
import gc
import mmap
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from cold_files import MIB, SIZE, cold, part, truth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neaptide_toolkit.machine.mappings import cached_part, mapped_files
from neaptide_toolkit.offload import Slab
from neaptide_toolkit.offload.disk import mapped_tensors
from neaptide_toolkit.offload.disk.mapped_tensors import MappedTensors

pytestmark = pytest.mark.skipif(
    not hasattr(os, "O_DIRECT") or not mapped_files(), reason="only Linux reads past its cache"
)


SPANS = st.tuples(st.integers(0, SIZE - 3 * MIB), st.integers(1, 12 * MIB))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
@given(
    spans=st.lists(SPANS, min_size=1, max_size=4),
    dtype=st.sampled_from([torch.uint8, torch.bfloat16, torch.float32]),
    piece=st.sampled_from([mmap.PAGESIZE, 5 * mmap.PAGESIZE, 3 * MIB]),
    owns=st.booleans(),
    in_slab=st.booleans(),
)
def test_values_are_those_of_the_file(
    path: Path,
    spans: list[tuple[int, int]],
    dtype: torch.dtype,
    piece: int,
    owns: bool,  # noqa: FBT001 - a parameter of the test
    in_slab: bool,  # noqa: FBT001 - as above
) -> None:
    size = dtype.itemsize
    pages = cold(path)
    tensors, expected = [], []
    for start, length in spans:
        begin, end = start // size * size, min(start + length, SIZE) // size * size
        end = max(end, begin + size)
        tensors.append(part(pages, begin, end, dtype))
        expected.append(truth(path)[begin:end].view(dtype))
    with pytest.MonkeyPatch.context() as patch, MappedTensors() as reading:
        patch.setattr(mapped_tensors, "_PIECE", piece)
        if owns:
            reading.own(tensors)
            found = tensors
        else:
            make = (lambda one: Slab(one.nbytes).flat.view(dtype)) if in_slab else torch.empty_like
            found = [make(one) for one in tensors]
            for one, place in zip(tensors, found, strict=True):
                reading.copy(one, place)
            reading.finish()
    for one, right in zip(found, expected, strict=True):
        assert torch.equal(one.view(torch.uint8), right.view(torch.uint8))


@pytest.mark.parametrize("owns", [False, True])
def test_the_page_cache_stays_without_the_file(path: Path, owns: bool) -> None:  # noqa: FBT001 - a parameter of the test
    weight = part(cold(path), 8, 8 + 20 * MIB)
    with MappedTensors() as reading:
        if owns:
            reading.own([weight])
        else:
            reading.copy(weight, torch.empty_like(weight))
    cached = cached_part(path)
    assert cached is not None
    assert cached < 0.05


def test_tensors_of_the_same_bytes_share_their_memory_as_before(path: Path) -> None:
    pages = cold(path)
    begin = part(pages, 0, 8).data_ptr()
    weight = part(pages, 0, 4 * MIB, torch.float32)
    tied = [torch.nn.Parameter(weight), torch.nn.Parameter(weight)]
    tied += [torch.nn.Parameter(part(pages, 0, 4 * MIB, torch.float32))]
    del weight
    with MappedTensors() as reading:
        reading.own(tied)
    assert 1 == len({one.data_ptr() for one in tied})
    assert tied[0].data_ptr() != begin


@pytest.mark.parametrize("bad", [0, MIB])
def test_a_file_that_cannot_be_read_raises(
    path: Path, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = part(cold(path), 0, 8 * MIB)
    begin, expected = weight.data_ptr(), truth(path)[: 8 * MIB]

    read = os.preadv

    def refuse(number: int, buffers: Any, offset: int) -> int:
        if offset < bad:
            return read(number, buffers, offset)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def copy() -> None:
        with MappedTensors() as reading:
            reading.copy(weight, torch.empty_like(weight))

    def own() -> None:
        with MappedTensors() as reading:
            reading.own([weight])

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", refuse)
        patch.setattr(mapped_tensors, "_PIECE", MIB)
        for way in (copy, own):
            with pytest.raises(OSError, match=r"Input/output error.*a file of weights"):
                way()
    assert weight.data_ptr() == begin
    assert torch.equal(weight, expected)


def test_a_file_that_ends_early_raises(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="shorter"):
            mapped_tensors._fill(number, SIZE, Slab(mmap.PAGESIZE).flat, 1)
    finally:
        os.close(number)


def test_a_read_that_fails_in_the_middle_names_the_file(path: Path) -> None:
    number = os.open(path.parent, os.O_RDONLY)  # a directory cannot be read
    try:
        with pytest.raises(OSError, match=f"directory: '{path.parent}'"):
            mapped_tensors._fill(number, 0, Slab(mmap.PAGESIZE).flat, 1)
    finally:
        os.close(number)


def test_an_error_in_between_waits_for_what_is_under_way(path: Path) -> None:
    weight = part(cold(path), 0, SIZE)
    numbers = Path("/proc/self/fd")

    def fail() -> None:
        with MappedTensors() as reading:
            reading.copy(weight, torch.empty_like(weight))
            raise KeyError

    gc.collect()  # a mapping of an earlier test may have a number
    before = len([*numbers.iterdir()])
    with pytest.raises(KeyError):
        fail()
    assert len([*numbers.iterdir()]) == before
