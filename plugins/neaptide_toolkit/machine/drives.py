"""The drives that hold a directory, and how far they are worn."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYSFS = Path("/sys")
_UNIT = 512_000
"""Bytes of a data unit (NVM Express Base Specification 2.0, figure 207, "Data Units Written")."""
_PATIENCE = 10.0


@attrs.frozen
class Drive:
    """A drive of this machine, such as `nvme0n1`."""

    name: str
    rotates: bool
    """True for a hard disk."""


@attrs.frozen
class Worn:
    """What a drive says of itself (SMART)."""

    written: int
    """Bytes written in its life."""
    used: int
    """Percent of its rated life that are used; it may be more than 100."""

    @property
    def rated(self) -> float | None:
        """The bytes that it is rated for, by both figures; None as long as 0 percent are used."""
        return self.written / self.used * 100 if self.used else None


def drives_of(path: Path, sysfs: Path = _SYSFS) -> list[Drive]:
    """Return the drives below the file system of an existing `path`; none if they are unknown.

    A partition, an encrypted volume or an array stands for the drives that it is made of.
    """
    number = path.stat().st_dev
    block = sysfs / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    found = dict.fromkeys(_below(block.resolve()))
    return [Drive(place.name, _rotates(place)) for place in found]


def _below(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        return
    if (place / "partition").exists():
        place = place.parent
    parts: list[Path] = []
    with suppress(OSError):
        parts = sorted((place / "slaves").iterdir())
    for part in parts:
        yield from _below(part.resolve())
    if not parts:
        yield place


def _rotates(place: Path) -> bool:
    try:
        return (place / "queue" / "rotational").read_text(encoding="ascii").strip() == "1"
    except OSError:
        return False


def worn(drive: Drive, command: str = "smartctl") -> Worn | str:
    """Ask an NVMe drive by `smartctl` of smartmontools, or return in one line why that fails."""
    ask = [command, "--json", "--attributes", f"/dev/{drive.name}"]
    try:
        done = subprocess.run(  # noqa: S603 - no part of it comes from a stranger
            ask, capture_output=True, timeout=_PATIENCE, check=False
        )
    except FileNotFoundError:
        return f"{command} is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command} does not answer: {type(error).__name__}"
    try:
        told: dict[str, Any] = json.loads(done.stdout)
        log = told.get("nvme_smart_health_information_log")
        if log is not None:
            return Worn(int(log["data_units_written"]) * _UNIT, int(log["percentage_used"]))
        said = [each["string"] for each in told.get("smartctl", {}).get("messages", ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"the answer of {command} is not understood"
    return " ".join(said) or "the drive does not say it"
