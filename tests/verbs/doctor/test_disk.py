"""The disk of the run directory: its type, its speed, and that nothing stays behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from neaptide_toolkit.machine.cgroups import Mount
from neaptide_verbs.doctor import disk
from neaptide_verbs.doctor.disk import Disk, Speed

GIB = 1 << 30
FAST = Speed(write=1e9, read=1e9)


def mount(point: str, kind: str) -> Mount:
    return Mount("/", point, kind, frozenset())


def levels(found: Disk) -> dict[str, str]:
    return {finding.what: finding.level for finding in disk.findings(found)}


def test_the_trial_measures_both_ways_and_leaves_nothing(tmp_path: Path) -> None:
    found = disk.examine(tmp_path, trial=True, nbytes=1 << 16, seconds=5.0)
    assert found.speed is not None
    assert found.speed.write > 0
    assert found.speed.read > 0
    assert (None, shutil.disk_usage(tmp_path).total) == (found.problem, found.total)
    assert [] == list(tmp_path.iterdir())


def test_an_interrupted_trial_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        disk.measure(tmp_path, 1 << 16, 5.0)
    assert [] == list(tmp_path.iterdir())


def test_a_slow_disk_is_left_alone_after_the_first_block(tmp_path: Path) -> None:
    assert disk.measure(tmp_path, 1 << 40, 0.0) == Speed(0.0, 0.0)


def test_the_nearest_directory_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert tmp_path == disk.nearest(tmp_path / "runs" / "mine")
    assert tmp_path == disk.nearest(tmp_path / "file")
    assert tmp_path == disk.nearest(tmp_path)
    assert tmp_path == disk.nearest(tmp_path / ("too_long_for_a_name" * 20) / "runs")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/runs", "xfs"),
        ("/database", "ext4"),
        ("/data", "xfs"),
        ("/mnt/over", "nfs4"),
        ("/", "ext4"),
    ],
)
def test_the_closest_mount_has_the_type(path: str, kind: str) -> None:
    mounted = [
        mount("/", "ext4"),
        mount("/data", "xfs"),
        mount("/mnt/over", "ext4"),
        mount("/mnt/over", "nfs4"),
    ]
    assert kind == disk.kind_of(Path(path), mounted)


def test_without_a_list_of_mounts_the_type_is_unknown() -> None:
    assert None is disk.kind_of(Path("/data"), [])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Disk("/d", "ext4", 9 * GIB, 9 * GIB, FAST, None), {}),
        (Disk("/d", "ext4", 9 * GIB, GIB, FAST, None), {"free": "warning"}),
        (Disk("/d", None, 9 * GIB, 9 * GIB, Speed(4e6, 1e9), None), {"speed": "warning"}),
        (Disk("/d", "tmpfs", 9 * GIB, 9 * GIB, FAST, None), {"durability": "warning"}),
        (Disk("/d", "nfs4", 9 * GIB, 9 * GIB, FAST, None), {"durability": "note"}),
        (Disk("/d", "ext4", 9 * GIB, 9 * GIB, None, "Read-only"), {"writing": "error"}),
    ],
)
def test_a_disk_is_judged(found: Disk, expected: dict[str, str]) -> None:
    assert expected == {name: level for name, level in levels(found).items() if level != "ok"}
