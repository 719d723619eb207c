"""Requests that the file system refuses: as long as they pass the page cache, or the last one."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from disks import aligned, noise, refusing

from neaptide_toolkit.offload import Slab
from neaptide_toolkit.offload.disk import copy

if TYPE_CHECKING:
    from neaptide_toolkit.offload.disk import TierFile

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("name", ["pwritev", "preadv"])
def test_a_file_system_that_refuses_direct_requests_gets_others(
    name: str, file: TierFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = getattr(os, name)

    def cached_only(number: int, parts: Any, offset: int) -> int:
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return int(whole(number, parts, offset))

    monkeypatch.setattr(os, name, cached_only)
    flat, found = file.allocate(9 * PAGE), Slab(9 * PAGE).flat
    copy(flat, aligned(noise(9 * PAGE)))
    copy(found, flat)
    assert torch.equal(noise(9 * PAGE), found)
    assert [] == file.moved_to_ram
    monkeypatch.setattr(os, name, refusing(errno.EINVAL))
    with pytest.raises(OSError, match="Invalid argument"):
        getattr(file.transfers, name[1:-1])(file.number, 0, found)


@pytest.mark.parametrize("size", [5, 6 * PAGE + 5])
def test_a_refused_write_of_what_fills_no_page_is_known(
    file: TierFile, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat, last, whole = file.allocate(size), size // PAGE * PAGE, os.pwritev

    def refusing_the_last(number: int, parts: Any, offset: int) -> int:
        if offset + len(parts[0]) > last:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(number, parts, offset)

    monkeypatch.setattr(os, "pwritev", refusing_the_last)
    copy(flat, aligned(noise(size)))
    assert len(file.moved_to_ram) == 1
    assert torch.equal(noise(size), flat)
