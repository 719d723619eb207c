"""Copies between tensors, of which one may be on the disk."""

from __future__ import annotations

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
        _read(region, target)
        return
    region = region_of(target)
    if region is not None:
        _write(region, target, source)
        return
    target.copy_(source, non_blocking=True)


def disk_bytes() -> int:
    """Return the bytes of all regions on the disk that tensors use."""
    return sum(region.size for region in regions() if not region.in_ram)


def _read(region: Region, target: torch.Tensor) -> None:
    file = region.file
    try:
        file.transfers.read(file.number, region.offset, target)
    except OSError as error:
        raise disk_error(error, file.folder, f"read {region.size} bytes") from error


def _write(region: Region, mapped: torch.Tensor, source: torch.Tensor) -> None:
    file, what = region.file, f"write {region.size} bytes"
    try:
        # None of it through the mapping: a full disk would end the process, and the system tells
        # nobody of pages that it cannot write later.
        file.transfers.write(file.number, region.offset, source)
    except OSError as error:
        if not region.move_to_ram():
            raise disk_error(error, file.folder, what) from error
        reason = f"{failed(error, file.folder, what)}; they are in RAM from now on"
        file.moved_to_ram.append(reason)
        mapped.copy_(source)
