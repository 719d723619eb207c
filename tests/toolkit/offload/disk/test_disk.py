"""Tensors in a file: the same bytes by every way in, and no trace of the file."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import resource
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from disks import aligned, noise, refusing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neaptide_toolkit.offload import Slab
from neaptide_toolkit.offload.disk import DiskError, TierFile, Transfers, copy, disk_bytes
from neaptide_toolkit.offload.disk.tier_file import region_of

CPU = torch.device("cpu")
PAGE = mmap.PAGESIZE


SIZES = st.sampled_from([0, 1, 255, PAGE - 1, PAGE, PAGE + 1, 9 * PAGE, 9 * PAGE + 77])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_every_way_in_and_out_has_the_same_bytes(file: TierFile, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(SIZES, min_size=1, max_size=3))
    tensors = [file.allocate(size) for size in sizes]
    expected = [torch.zeros(size, dtype=torch.uint8) for size in sizes]
    for number in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.integers(0, len(sizes) - 1))
        size, there, known = sizes[place], tensors[place], expected[place]
        way = data.draw(st.sampled_from(["write", "write aligned", "change a byte", "read"]))
        if way == "change a byte" and size:
            at = data.draw(st.integers(0, size - 1))
            there[at] = known[at] = number
        elif way == "read":
            for found in (torch.zeros(size, dtype=torch.uint8), Slab(size).flat):
                copy(found, there)
                assert torch.equal(known, found)
        elif way != "change a byte":
            known.copy_(noise(size, number))
            copy(there, aligned(known) if "aligned" in way else known)
        for one, other in zip(expected, tensors, strict=True):
            assert torch.equal(one, other)


def test_views_of_other_dtypes_see_what_was_written(file: TierFile) -> None:
    flat = file.allocate(8 * PAGE)
    view = flat[PAGE:].view(torch.float32)
    copy(flat, torch.ones(2 * PAGE).view(torch.uint8))
    assert torch.equal(torch.ones(7 * PAGE // 4), view)
    view.mul_(3)
    found = Slab(8 * PAGE).flat
    copy(found, flat)
    assert torch.equal(view, found[PAGE:].view(torch.float32))


def test_a_part_of_a_region_is_copied_as_memory(file: TierFile) -> None:
    flat = file.allocate(3 * PAGE)
    copy(flat, noise(3 * PAGE))
    found = torch.zeros(PAGE, dtype=torch.uint8)
    copy(found, flat[:PAGE])
    assert torch.equal(noise(3 * PAGE)[:PAGE], found)


def test_the_file_is_private_and_has_no_name(tmp_path: Path, file: TierFile) -> None:
    file.allocate(PAGE)
    found = os.fstat(file.number)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert not found.st_nlink
    assert [] == list(tmp_path.iterdir())


def test_a_file_system_without_nameless_files_has_nothing_left_either(
    tmp_path: Path, transfers: Transfers, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def without(path: Any, flags: int, *mode: Any, **others: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return opened(path, flags, *mode, **others)

    monkeypatch.setattr(os, "open", without)
    file = TierFile(tmp_path, transfers)
    flat = file.allocate(PAGE)
    copy(flat, noise(PAGE))
    assert torch.equal(noise(PAGE), flat)
    assert [] == list(tmp_path.iterdir())
    assert stat.S_IMODE(os.fstat(file.number).st_mode) == 0o600


def test_the_room_is_counted_as_long_as_a_tensor_uses_it(file: TierFile) -> None:
    gc.collect()
    before = disk_bytes()
    flat, other = file.allocate(5000), file.allocate(70)
    view = flat[:8].view(torch.float32)
    assert before + 5070 == disk_bytes()
    del flat, other
    gc.collect()
    assert before + 5000 == disk_bytes()
    del view
    gc.collect()
    assert before == disk_bytes()


def test_the_file_is_closed_when_no_tensor_uses_it(tmp_path: Path, transfers: Transfers) -> None:
    file = TierFile(tmp_path, transfers)
    number, flat = file.number, file.allocate(PAGE)
    del file
    gc.collect()
    os.fstat(number)  # the tensor's region uses it
    del flat
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_files_in_ram_are_refused(transfers: Transfers) -> None:
    with pytest.raises(ValueError, match="'/dev/shm' is a tmpfs, which keeps files in RAM; name"):
        TierFile(Path("/dev/shm"), transfers)


def test_what_is_not_a_directory_is_refused(tmp_path: Path, transfers: Transfers) -> None:
    with pytest.raises(ValueError, match="is not a directory; name one on a disk"):
        TierFile(tmp_path / "missing", transfers)


def test_a_directory_that_cannot_be_written_is_told(
    tmp_path: Path, transfers: Transfers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", refusing(errno.EACCES))
    told = rf"cannot make a file in {tmp_path}: Permission denied; permit writing there, or name"
    with pytest.raises(DiskError, match=told):
        TierFile(tmp_path, transfers)


def test_a_path_that_the_system_refuses_is_told(tmp_path: Path, transfers: Transfers) -> None:
    with pytest.raises(DiskError, match=r"File name too long; .* name another directory"):
        TierFile(tmp_path / ("a" * 5000), transfers)


def test_a_disk_without_room_is_known_when_the_tensor_is_made(file: TierFile) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * PAGE, limits[1]))
    try:
        with pytest.raises(DiskError, match=r"cannot get 409600 bytes in .*: .*; free space there"):
            file.allocate(100 * PAGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.equal(torch.zeros(PAGE), file.allocate(PAGE))


def test_short_reads_and_writes_are_continued(
    file: TierFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_read, whole_write = os.preadv, os.pwritev
    for name, whole in (("preadv", whole_read), ("pwritev", whole_write)):

        def short(number: int, parts: Any, offset: int, whole: Any = whole) -> int:
            done: int = whole(number, [parts[0][:PAGE]], offset)
            return done

        monkeypatch.setattr(os, name, short)
    flat, found = file.allocate(10 * PAGE), Slab(10 * PAGE).flat
    copy(flat, aligned(noise(10 * PAGE)))
    copy(found, flat)
    assert torch.equal(noise(10 * PAGE), found)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_what_the_disk_refuses_stays_in_ram(
    file: TierFile, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat, other = file.allocate(6 * PAGE + 5), file.allocate(PAGE)
    view = flat[:8]
    copy(other, noise(PAGE, 1))
    monkeypatch.setattr(os, "pwritev", refusing(code))
    copy(flat, noise(6 * PAGE + 5))
    assert region_of(flat) is None
    assert [os.strerror(code)] == [told.split(": ")[1].split("; ")[0] for told in file.moved_to_ram]
    monkeypatch.undo()
    for seed in (2, 3):
        copy(flat, noise(6 * PAGE + 5, seed))
        found = Slab(6 * PAGE + 5).flat
        copy(found, flat)
        assert torch.equal(noise(6 * PAGE + 5, seed), found)
        assert torch.equal(found[:8], view)
    assert torch.equal(noise(PAGE, 1), other)


def test_without_room_in_ram_a_refused_write_is_an_error(
    file: TierFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = file.allocate(2 * PAGE)
    monkeypatch.setattr(os, "pwritev", refusing(errno.EIO))
    monkeypatch.setattr("neaptide_toolkit.offload.disk.tier_file._LEFT", 2**62)
    with pytest.raises(
        DiskError, match=r"cannot write 8192 bytes in .*: Input/output error; check"
    ):
        copy(flat, noise(2 * PAGE))


def test_a_refused_read_is_an_error(file: TierFile, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = file.allocate(9 * PAGE)
    monkeypatch.setattr(os, "preadv", refusing(errno.EIO))
    with pytest.raises(
        DiskError, match=r"cannot read 36864 bytes in .*: Input/output error; check"
    ):
        copy(Slab(9 * PAGE).flat, flat)


def test_a_file_that_was_cut_is_an_error(file: TierFile) -> None:
    flat = file.allocate(9 * PAGE)
    os.ftruncate(file.number, 0)
    with pytest.raises(DiskError, match="the file is shorter than what was to be read"):
        copy(Slab(9 * PAGE).flat, flat)


def test_pieces_are_whole_pages() -> None:
    with pytest.raises(ValueError, match=r"a multiple of 4096 bytes \(got 100\)"):
        Transfers(CPU, piece=100)
