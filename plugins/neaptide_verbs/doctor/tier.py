"""The disk as a tier below RAM: its rates past the page cache, and how far its drives are worn."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import attrs

from neaptide.api.records import Finding
from neaptide.io.units import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from neaptide_toolkit.machine.drives import Drive, Worn

MEASURED = 256 << 20
_LEAST = 1e9
_OF_HEADS = 400e6
"""Bytes per second that no hard disk reads."""
_PERCENT = 80
_ADVICE = "keep the tier of layer-streaming on an NVMe drive: set its `path`"


@attrs.frozen
class TierRates:
    """Bytes per second of `tier = "disk"`: large pieces, several at once."""

    write: float
    read: float
    direct: bool
    """True if the file system lets reads and writes pass by the page cache (O_DIRECT)."""


def measure(
    directory: Path, free: int, nbytes: int = MEASURED, seconds: float = 0.5
) -> TierRates | str:
    """Write and read in a nameless file, each for about `seconds`, in at most a quarter of `free`.

    Return in one line why the directory holds no tier, if it does not.
    """
    from torch import device  # noqa: PLC0415 - the doctor works without it

    from neaptide_toolkit.offload import Slab  # noqa: PLC0415 - as above
    from neaptide_toolkit.offload.disk import (  # noqa: PLC0415 - as above
        DiskError,
        TierFile,
        Transfers,
    )

    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    transfers = Transfers(device("cpu"))
    piece = transfers.threads * transfers.piece
    nbytes = min(nbytes, free // 4) // piece * piece
    try:
        if not nbytes:
            return f"{size(free)} free are too little to measure it"
        file = TierFile(directory, transfers)
        file.allocate(nbytes)
        flat = Slab(piece).flat
        flat.random_()  # zeros would be compressed
        write = _rate(nbytes, piece, seconds, lambda at: transfers.write(file.number, at, flat))
        if not file.direct:
            os.fsync(file.number)
            os.posix_fadvise(file.number, 0, 0, os.POSIX_FADV_DONTNEED)
        read = _rate(nbytes, piece, seconds, lambda at: transfers.read(file.number, at, flat))
    except (ValueError, DiskError, OSError) as error:
        return str(error)
    finally:
        transfers.close()
    return TierRates(write, read, file.direct)


def _rate(nbytes: int, piece: int, seconds: float, move: Callable[[int], None]) -> float:
    began, done = time.perf_counter(), 0
    while done < nbytes and (not done or time.perf_counter() - began < seconds):
        move(done)
        done += piece
    return done / (time.perf_counter() - began)


def findings(rates: TierRates | str | None, drives: dict[Drive, Worn | str]) -> Iterator[Finding]:
    """Yield the findings. `rates` is None if nothing was measured, or the reason why not."""
    if isinstance(rates, str):
        yield Finding("ok", "tier", f"not for layer-streaming: {rates}")
    elif rates is not None:
        yield _judged(rates)
    fast = isinstance(rates, TierRates) and rates.read > _OF_HEADS
    for drive, found in drives.items():
        if drive.rotates:
            if not fast:  # a virtual disk calls itself a hard disk, too
                detail = f"{drive.name} is a hard disk, whose heads move: streaming from it is slow"
                yield Finding("note", "drive", detail, _ADVICE)
        elif isinstance(found, str):
            yield Finding("ok", "wear", f"{drive.name}: not known ({found})")
        else:
            yield _wear(drive, found)


def _judged(rates: TierRates) -> Finding:
    detail = f"{size(int(rates.write))}/s written and {size(int(rates.read))}/s read"
    if not rates.direct:
        advice = "the file system has no O_DIRECT; choose ext4, xfs or btrfs for layer-streaming"
        return Finding("note", "tier", f"{detail}, through the page cache", advice)
    detail = f"{detail}, past the page cache"
    if min(rates.write, rates.read) < _LEAST:
        return Finding("note", "tier", detail, _ADVICE)
    return Finding("ok", "tier", detail)


def _wear(drive: Drive, found: Worn) -> Finding:
    detail = f"{drive.name}: {found.written / 1e12:,.0f} TB written, {found.used} % of its life"
    if found.rated is None:
        return Finding("ok", "wear", detail)
    rated = max(1, round(found.rated / 1e12))
    detail = f"{detail}, so it is rated for about {rated:,} TB"
    advice = f"for layer-streaming on this disk, set rated_tb = {rated}"
    if found.used < _PERCENT:
        return Finding("ok", "wear", detail, advice)
    return Finding("warning", "wear", detail, f"replace it before a long run; {advice}")
