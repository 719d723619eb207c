"""Copies between tensors, of which one may be on the disk."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from .errors import disk_error, failed
from .tier_file import region_of, regions

if TYPE_CHECKING:
    import torch

    from .tier_file import Region


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy `source` to `target`, past the page cache if one of them is a whole region.

    Between tensors in memory this is `target.copy_(source, non_blocking=True)`. A read or write of
    the disk is done when this returns.

    Args:
        target: of any dtype; uint8 `[n]` if one of them is a region.
        source: of the same shape.

    Raises:
        DiskError: the disk cannot be read; or it cannot be written, and RAM has no room for the
            region.
    """
    region = region_of(source)
    if region is not None:
        _read(region, target, source)
        return
    region = region_of(target)
    if region is not None:
        _write(region, target, source)
        return
    target.copy_(source, non_blocking=True)


def disk_bytes() -> int:
    """Return the bytes of all regions on the disk that tensors use."""
    return sum(region.size for region in regions() if not region.in_ram)


def _read(region: Region, target: torch.Tensor, mapped: torch.Tensor) -> None:
    file, body = region.file, _body(region.size)
    try:
        file.transfers.read(file.number, region.offset, target[:body])
    except OSError as error:
        raise disk_error(error, file.folder, f"read {body} bytes") from error
    target[body:].copy_(mapped[body:])


def _write(region: Region, mapped: torch.Tensor, source: torch.Tensor) -> None:
    file, body = region.file, _body(region.size)
    try:
        file.transfers.write(file.number, region.offset, source[:body])
    except OSError as error:
        what = f"write {body} bytes"
        if not region.move_to_ram():
            raise disk_error(error, file.folder, what) from error
        reason = f"{failed(error, file.folder, what)}; they are in RAM from now on"
        file.moved_to_ram.append(reason)
        mapped.copy_(source)
        return
    mapped[body:].copy_(source[body:])


def _body(size: int) -> int:
    """Return the bytes of whole pages: direct requests have whole pages."""
    return size - size % mmap.PAGESIZE
