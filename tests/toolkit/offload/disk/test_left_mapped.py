"""What is not read past the page cache: it has the same values, and stays where it is."""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from cold_files import MIB, SIZE, cold, part, truth

from neaptide_toolkit.machine.mappings import Mapping, is_as_in_file, mapped_files
from neaptide_toolkit.offload.disk.file_spans import reads_directly
from neaptide_toolkit.offload.disk.mapped_tensors import MappedTensors
from neaptide_toolkit.offload.pages import PRIVATE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not hasattr(os, "O_DIRECT") or not mapped_files(), reason="only Linux reads past its cache"
)


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
