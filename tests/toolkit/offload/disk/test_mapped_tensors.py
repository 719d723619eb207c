"""Mapped tensors keep their values, whichever way they are read, and the page cache stays empty."""

from __future__ import annotations

import errno
import gc
import mmap
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import disks
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neaptide_toolkit.machine.mappings import cached_part, is_as_in_file, mapped_files
from neaptide_toolkit.offload import Slab
from neaptide_toolkit.offload.disk import mapped_tensors
from neaptide_toolkit.offload.disk.mapped_tensors import MappedTensors, reads_directly

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
SIZE = 24 * MIB + 100

pytestmark = pytest.mark.skipif(
    not hasattr(os, "O_DIRECT") or not mapped_files(), reason="only Linux reads past its cache"
)


@pytest.fixture
def path() -> Iterator[Path]:
    with TemporaryDirectory(dir=disks.folder()) as made:
        path = Path(made) / "a file of weights"
        generator = torch.Generator().manual_seed(0)
        values = torch.randint(0, 256, (SIZE,), dtype=torch.uint8, generator=generator)
        path.write_bytes(values.numpy().tobytes())
        yield path


def cold(path: Path) -> torch.Tensor:
    """Return the bytes of the file, mapped, while the page cache has none of them."""
    with path.open("rb") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    pages.madvise(mmap.MADV_RANDOM)  # what is touched does not bring its neighbours
    if not reads_directly(path):
        pytest.skip("this file system keeps its files in RAM, or has no O_DIRECT")
    return torch.frombuffer(pages, dtype=torch.uint8)


def truth(path: Path) -> torch.Tensor:
    """Return the bytes of the file, read past the page cache."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECT)
    room = mmap.mmap(-1, -(-SIZE // mmap.PAGESIZE) * mmap.PAGESIZE)
    try:
        assert os.preadv(number, [room], 0) == SIZE
    finally:
        os.close(number)
    return torch.frombuffer(room, dtype=torch.uint8)[:SIZE]


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
    whole = cold(path)
    tensors, expected = [], []
    for start, length in spans:
        begin, end = start // size * size, min(start + length, SIZE) // size * size
        end = max(end, begin + size)
        tensors.append(whole[begin:end].view(dtype))
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
    weight = cold(path)[8 : 8 + 20 * MIB]
    with MappedTensors() as reading:
        if owns:
            reading.own([weight])
        else:
            reading.copy(weight, torch.empty_like(weight))
    part = cached_part(path)
    assert part is not None
    assert part < 0.05


def test_a_tensor_that_was_written_keeps_what_was_written(path: Path) -> None:
    weight = cold(path)[: 8 * MIB]
    weight[5 * MIB] += 1
    begin, value = weight.data_ptr(), int(weight[5 * MIB])
    assert not is_as_in_file(begin, begin + weight.nbytes)
    place = torch.empty_like(weight)
    with MappedTensors() as reading:
        reading.copy(weight, place)
        reading.own([weight])
    assert weight.data_ptr() == begin
    assert [value, value] == [int(place[5 * MIB]), int(weight[5 * MIB])]


def test_what_is_in_the_page_cache_stays_mapped(path: Path) -> None:
    weight = cold(path)[: 8 * MIB]
    begin, _ = weight.data_ptr(), weight.sum()
    with MappedTensors() as reading:
        reading.own([weight])
    assert weight.data_ptr() == begin


def test_small_tensors_and_those_of_no_file_are_copied_as_any_other(path: Path) -> None:
    small, other = cold(path)[: (64 << 10) - 1], torch.arange(MIB)
    begins = [one.data_ptr() for one in (small, other)]
    places = [torch.empty_like(one) for one in (small, other)]
    strided = torch.empty(MIB, 2, dtype=torch.int64)[:, 0]
    with MappedTensors() as reading:
        reading.own([small, other, torch.empty(0), torch.empty(3 * MIB, device="meta")])
        for one, place in zip((small, other, other), (*places, strided), strict=True):
            reading.copy(one, place)
    assert begins == [one.data_ptr() for one in (small, other)]
    assert torch.equal(small, places[0])
    assert torch.equal(other, places[1])
    assert torch.equal(other, strided)


def test_tensors_of_the_same_bytes_share_their_memory_as_before(path: Path) -> None:
    whole = cold(path)
    tied = [torch.nn.Parameter(whole[: 4 * MIB].view(torch.float32)) for _ in range(2)]
    with MappedTensors() as reading:
        reading.own(tied)
    assert tied[0].data_ptr() == tied[1].data_ptr()
    assert tied[0].data_ptr() != whole.data_ptr()


def test_memory_that_only_seems_to_be_of_the_file_is_not_read_from_it(path: Path) -> None:
    cold(path)
    zeros = Slab(8 * MIB).flat  # no page of it was touched
    with MappedTensors() as reading:
        place = mapped_files()[0]
        begin = zeros.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        reading._files = [type(place)(begin, begin + 16 * MIB, 0, str(path))]
        reading._starts = [begin]
        reading.own([zeros])
        copied = torch.ones_like(zeros)
        reading.copy(zeros, copied)
    assert not zeros.any()
    assert not copied.any()


def test_a_file_that_cannot_be_read_raises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = cold(path)[: 8 * MIB]
    begin, expected = weight.data_ptr(), truth(path)[: 8 * MIB]

    def refuse(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def copy() -> None:
        with MappedTensors() as reading:
            reading.copy(weight, torch.empty_like(weight))

    def own() -> None:
        with MappedTensors() as reading:
            reading.own([weight])

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", refuse)
        for way in (copy, own):
            with pytest.raises(OSError, match="Input/output error"):
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


def test_an_error_in_between_waits_for_what_is_under_way(path: Path) -> None:
    weight = cold(path)
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
