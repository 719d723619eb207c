"""The disk as a tier below RAM: what is measured, and how it is judged."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import disks
import pytest

from neaptide_toolkit.machine.drives import Drive, Worn
from neaptide_verbs.doctor import tier
from neaptide_verbs.doctor.tier import TierRates

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30
SSD, DISK = Drive("nvme0n1", rotates=False), Drive("sda", rotates=True)
FAST = TierRates(write=2e9, read=3e9, direct=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=disks.folder()) as made:
        yield Path(made)


def test_both_ways_are_measured_and_nothing_is_left(folder: Path) -> None:
    found = tier.measure(folder, 4 * GIB, nbytes=64 << 20, seconds=5.0)
    assert isinstance(found, TierRates)
    assert found.write > 0
    assert found.read > 0
    assert [] == list(folder.iterdir())


def test_without_o_direct_both_ways_are_measured_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "neaptide_toolkit.offload.disk.tier_file.direct"
    monkeypatch.setattr(refused, lambda _file, *, wanted: wanted and False)
    found = tier.measure(folder, 4 * GIB, nbytes=64 << 20, seconds=5.0)
    assert isinstance(found, TierRates)
    assert not found.direct
    assert found.read > 0


@pytest.mark.parametrize("free", [0, 255 << 20])
def test_a_disk_with_little_room_is_not_filled(folder: Path, free: int) -> None:
    assert "too little" in str(tier.measure(folder, free))


def test_a_directory_that_takes_no_file_says_why(folder: Path) -> None:
    (folder / "file").write_text("")
    assert "not a directory" in str(tier.measure(folder / "file", GIB))


@pytest.mark.parametrize(
    ("rates", "level", "words"),
    [
        (FAST, "ok", "past the page cache"),
        (TierRates(4e8, 3e9, direct=True), "note", "past the page cache"),
        (TierRates(2e9, 3e9, direct=False), "note", "through the page cache"),
        ("it needs Linux", "ok", "it needs Linux"),
    ],
)
def test_rates_are_judged(rates: TierRates | str, level: str, words: str) -> None:
    (found,) = tier.findings(rates, {})
    assert (level, "tier") == (found.level, found.what)
    assert words in found.detail
    assert (found.advice is not None) == (level == "note")


@pytest.mark.parametrize(
    ("drive", "worn", "level", "words"),
    [
        (SSD, Worn(18 * 10**12, 3), "ok", "rated for about 600 TB"),
        (SSD, Worn(540 * 10**12, 90), "warning", "90 % of its life"),
        (SSD, Worn(10**12, 0), "ok", "1 TB written, 0 %"),
        (SSD, "smartctl is not installed", "ok", "smartctl is not installed"),
        (DISK, "smartctl is not installed", "note", "sda is a hard disk"),
    ],
)
def test_drives_are_judged(drive: Drive, worn: Worn | str, level: str, words: str) -> None:
    (found,) = tier.findings(None, {drive: worn})
    assert level == found.level
    assert words in found.detail


def test_a_hard_disk_that_is_too_fast_for_one_is_virtual() -> None:
    found = [*tier.findings(FAST, {DISK: "smartctl is not installed"})]
    assert ["tier"] == [each.what for each in found]


def test_the_rated_life_is_what_the_plugin_is_to_be_told() -> None:
    (found,) = tier.findings(None, {SSD: Worn(18 * 10**12, 3)})
    assert "rated_tb = 600" in str(found.advice)
