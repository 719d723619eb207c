"""Which drives hold a directory, and what they say of their wear."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from neaptide_toolkit.machine.drives import Drive, Worn, drives_of, worn

NVME = {
    "smartctl": {"exit_status": 0},
    "nvme_smart_health_information_log": {
        "critical_warning": 0,
        "percentage_used": 3,
        "data_units_read": 51_203_111,
        "data_units_written": 35_156_250,
    },
}
"""As `smartctl --json --attributes` prints it."""
SSD = Drive("nvme0n1", rotates=False)


def sysfs(folder: Path, path: Path) -> tuple[Path, Path]:
    """Make a `/sys` in which `path` is on `block`; return both."""
    number = path.stat().st_dev
    devices = folder / "devices"
    links = folder / "dev" / "block"
    for made in (devices, links):
        made.mkdir(parents=True)
    return devices, links / f"{os.major(number)}:{os.minor(number)}"


def disk(devices: Path, name: str, *, rotates: bool = False) -> Path:
    place = devices / name
    (place / "queue").mkdir(parents=True)
    (place / "queue" / "rotational").write_text(f"{int(rotates)}\n")
    return place


def test_a_partition_stands_for_its_drive(tmp_path: Path) -> None:
    devices, link = sysfs(tmp_path / "sys", tmp_path)
    part = disk(devices, "sda", rotates=True) / "sda2"
    part.mkdir()
    (part / "partition").write_text("2\n")
    link.symlink_to(part)
    assert [Drive("sda", rotates=True)] == drives_of(tmp_path, tmp_path / "sys")


def test_a_volume_stands_for_all_drives_that_it_is_made_of(tmp_path: Path) -> None:
    devices, link = sysfs(tmp_path / "sys", tmp_path)
    volume, array = disk(devices, "dm-0"), disk(devices, "md0")
    for holder, below in ((volume, [array]), (array, [])):
        (holder / "slaves").mkdir()
        for each in below:
            (holder / "slaves" / each.name).symlink_to(each)
    for name in ("nvme1n1", "nvme0n1"):
        part = disk(devices, name) / f"{name}p1"
        part.mkdir()
        (part / "partition").write_text("1\n")
        (array / "slaves" / part.name).symlink_to(part)
    link.symlink_to(volume)
    names = [drive.name for drive in drives_of(tmp_path, tmp_path / "sys")]
    assert ["nvme0n1", "nvme1n1"] == names


def test_a_file_system_on_no_drive_has_none(tmp_path: Path) -> None:
    assert [] == drives_of(tmp_path, tmp_path / "sys")


def test_this_machine_is_not_refused() -> None:
    assert all(drive.name for drive in drives_of(Path(__file__).parent))


def answering(folder: Path, text: str, code: int = 0) -> str:
    """Return the path of a `smartctl` that prints `text` and what it was asked."""
    script = folder / "smartctl"
    (folder / "answer").write_text(text)
    script.write_text(f'#!/bin/sh\necho "$@" > {folder}/asked\ncat {folder}/answer\nexit {code}\n')
    script.chmod(0o700)
    return str(script)


def test_an_nvme_drive_says_what_was_written_and_how_much_of_its_life_is_used(
    tmp_path: Path,
) -> None:
    found = worn(SSD, answering(tmp_path, json.dumps(NVME)))
    assert Worn(18_000_000_000_000, 3) == found
    assert isinstance(found, Worn)
    assert found.rated == pytest.approx(600e12)
    assert "--json --attributes /dev/nvme0n1\n" == (tmp_path / "asked").read_text()


def test_a_new_drive_does_not_say_what_it_is_rated_for() -> None:
    assert None is Worn(10**12, 0).rated


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            json.dumps({"smartctl": {"messages": [{"string": "Permission denied"}]}}),
            "Permission denied",
        ),
        ("{}", "the drive does not say it"),
        ("", "not understood"),
        ("[]", "not understood"),
        ("[1", "not understood"),
        (json.dumps({"nvme_smart_health_information_log": {}}), "not understood"),
        (json.dumps({"smartctl": {"messages": [1]}}), "not understood"),
    ],
)
def test_what_is_not_said_has_a_reason(tmp_path: Path, text: str, reason: str) -> None:
    found: Any = worn(SSD, answering(tmp_path, text, code=2))
    assert isinstance(found, str)
    assert reason in found


def test_without_the_tool_that_is_said(tmp_path: Path) -> None:
    gone, refused = str(tmp_path / "none"), tmp_path / "refused"
    refused.write_text("")
    assert worn(SSD, gone) == f"{gone} is not installed"
    assert "does not answer" in str(worn(SSD, str(refused)))
