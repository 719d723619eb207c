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

from neaptide_toolkit.machine.mappings import Mapping, cached_part, is_as_in_file, mapped_files
from neaptide_toolkit.offload import Slab
from neaptide_toolkit.offload.disk import mapped_tensors
from neaptide_toolkit.offload.disk.file_spans import reads_directly
from neaptide_toolkit.offload.disk.mapped_tensors import MappedTensors
from neaptide_toolkit.offload.pages import PRIVATE

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


def cold(path: Path, flags: int = mmap.MAP_PRIVATE) -> mmap.mmap:
    """Map the file, while the page cache has none of it."""
    with path.open("r+b") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        pages = mmap.mmap(file.fileno(), 0, flags=flags)
    pages.madvise(mmap.MADV_RANDOM)  # what is touched does not bring its neighbours
    if not reads_directly(path):
        pytest.skip("this file system keeps its files in RAM, or has no O_DIRECT")
    return pages


def part(pages: mmap.mmap, start: int, stop: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Return bytes `start` to `stop` as a tensor with a storage of its own."""
    return torch.frombuffer(
        pages, dtype=dtype, count=(stop - start) // dtype.itemsize, offset=start
    )


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


def test_a_tensor_that_was_written_keeps_what_was_written(path: Path) -> None:
    weight = part(cold(path), 0, 8 * MIB)
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
    weight = part(cold(path), 0, 8 * MIB)
    begin, _ = weight.data_ptr(), weight.sum()
    with MappedTensors() as reading:
        reading.own([weight])
    assert weight.data_ptr() == begin


def test_small_tensors_and_those_of_no_file_are_copied_as_any_other(path: Path) -> None:
    small, other = part(cold(path), 0, (64 << 10) - 1), torch.arange(MIB)
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


@pytest.mark.parametrize("other", ["transposed", "small", "overlapping", "somebody else's"])
def test_tensors_that_share_memory_in_another_way_stay_as_they_are(path: Path, other: str) -> None:
    pages = cold(path)
    weight = part(pages, 0, 4 * MIB, torch.float32).view(1024, 1024)
    also = {
        "transposed": lambda: weight.T,
        "small": lambda: weight[3, :8],
        "overlapping": lambda: part(pages, 3 * MIB, 6 * MIB, torch.float32),
        "somebody else's": lambda: weight[5:],
    }[other]()
    given = [weight] if other == "somebody else's" else [also, weight]
    begins = [weight.data_ptr(), also.data_ptr()]
    with MappedTensors() as reading:
        reading.own(given)
    assert begins == [weight.data_ptr(), also.data_ptr()]


def test_a_mapping_that_writes_to_its_file_is_left_alone(path: Path) -> None:
    pages = cold(path, mmap.MAP_SHARED)
    weight = part(pages, 0, 4 * MIB)
    begin = weight.data_ptr()
    with MappedTensors() as reading:
        reading.own([weight])
    assert weight.data_ptr() == begin
    weight.fill_(7)
    assert path.read_bytes()[: 4 * MIB] == b"\x07" * (4 * MIB)


@pytest.mark.parametrize("gone", [False, True])
def test_another_file_of_the_same_name_is_not_read(
    path: Path,
    gone: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    weight = part(cold(path), 0, 8 * MIB)
    expected = truth(path)[: 8 * MIB].clone()
    other = bytearray(expected.numpy().tobytes() + bytes(SIZE - 8 * MIB))
    other[4 * MIB] ^= 255  # its ends are the same
    reading = MappedTensors()
    if gone:
        path.with_name(f"{path.name} (deleted)").write_bytes(other)
        path.unlink()
        reading = MappedTensors()
    else:
        new = path.with_name("new")
        new.write_bytes(other)
        new.replace(path)
    place = torch.empty_like(weight)
    with reading:
        reading.copy(weight, place)
        reading.own([weight])
    assert torch.equal(place, expected)
    assert torch.equal(weight, expected)


def test_a_file_system_that_refuses_the_read_is_read_through_the_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = part(cold(path), 0, 8 * MIB)
    begin, expected = weight.data_ptr(), truth(path)[: 8 * MIB]

    def refuse(*_: Any) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    place = torch.empty_like(weight)
    with monkeypatch.context() as patch, MappedTensors() as reading:
        patch.setattr(os, "preadv", refuse)
        assert not reads_directly(path)
        reading.copy(weight, place)
        reading.own([weight])
    assert weight.data_ptr() == begin
    assert torch.equal(place, expected)


def test_a_conjugate_view_is_copied_as_any_other(path: Path) -> None:
    weight = part(cold(path), 0, 8 * MIB).view(torch.int16).float().view(torch.complex64)
    mapped = part(cold(path), 0, 8 * MIB, torch.complex64).conj()
    places = [torch.empty(len(one), dtype=one.dtype) for one in (weight.conj(), mapped)]
    with MappedTensors() as reading:
        reading.own([mapped])
        for one, place in zip((weight.conj(), mapped), places, strict=True):
            reading.copy(one, place)
    assert torch.equal(places[0], weight.conj())
    bits = [one.resolve_conj().view(torch.uint8) for one in (places[1], mapped)]
    assert torch.equal(*bits)


def test_memory_that_only_seems_to_be_of_the_file_is_not_read_from_it(path: Path) -> None:
    cold(path)
    zeros = torch.frombuffer(mmap.mmap(-1, 8 * MIB, flags=PRIVATE), dtype=torch.uint8)
    with MappedTensors() as reading:
        begin, inode = zeros.data_ptr(), path.stat().st_ino  # no page of it was touched
        reading._files = [Mapping(begin, begin + 16 * MIB, 0, inode, str(path))]
        reading._starts = [begin]
        reading.own([zeros])
        copied = torch.ones_like(zeros)
        reading.copy(zeros, copied)
    assert not zeros.any()
    assert not copied.any()


def test_a_file_that_cannot_be_read_raises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = part(cold(path), 0, 8 * MIB)
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
