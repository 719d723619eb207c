"""The checkpoints of a run: their order, the newest one that can be relied on, and pruning."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from neaptide.checkpoint import checkpoints, newest_valid, prune, step_directory, verify, writing
from neaptide.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def write(root: Path, *steps: int) -> list[Path]:
    for step in steps:
        with writing(step_directory(root, step), step, {}) as writer:
            writer.file("data.bin").write(b"%d" % step)
    return [step_directory(root, step) for step in steps]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_oldest_first_also_past_eight_digits(tmp_path: Path) -> None:
    expected = write(tmp_path, 9, 400, 99_999_999, 123_456_789)

    assert "step-00000009" == expected[0].name
    assert expected == checkpoints(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    assert [] == checkpoints(tmp_path / "missing")
    assert (None, []) == newest_valid(tmp_path / "missing")
    prune(tmp_path / "missing", keep=1)


def test_other_names_are_none(tmp_path: Path) -> None:
    (expected,) = write(tmp_path, 5)
    for name in ("step-5", "step-00000005.bak", "step-000000006", "best", ".old-best"):
        (tmp_path / name).mkdir()

    assert [expected] == checkpoints(tmp_path)


def test_damaged_ones_are_skipped_with_a_warning(tmp_path: Path) -> None:
    first, second, third = write(tmp_path, 1, 2, 3)
    (second / "data.bin").write_bytes(b"x")
    (third / "manifest.json").unlink()
    (third / "data.bin").unlink()

    newest, warnings = newest_valid(tmp_path)

    assert first == newest
    assert 2 == len(warnings)
    assert warnings[0].startswith("checkpoint step-00000003 is skipped: cannot read")
    assert f"checkpoint step-00000002 is skipped: {verify(second)[0]}" == warnings[1]


def test_all_damaged(tmp_path: Path) -> None:
    for path in write(tmp_path, 1, 2):
        (path / "data.bin").write_bytes(b"too long")
        (path / "more").touch()

    newest, warnings = newest_valid(tmp_path)

    assert newest is None
    assert ["(and 1 more problems)"] * 2 == [warning[-21:] for warning in warnings]


def test_an_interrupted_save_is_listed_and_recovered(tmp_path: Path) -> None:
    first, second = write(tmp_path, 1, 2)
    second.rename(tmp_path / ".old-step-00000002")

    assert [first, second] == checkpoints(tmp_path)
    assert (second, []) == newest_valid(tmp_path)
    assert second.is_dir()


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 3, 4)
    (tmp_path / "best").mkdir()

    prune(tmp_path, keep=2)
    prune(tmp_path, keep=2)

    assert ["best", "step-00000003", "step-00000004"] == names(tmp_path)


def test_prune_does_not_count_incomplete_ones(tmp_path: Path) -> None:
    _, _, third, fourth = write(tmp_path, 1, 2, 3, 4)
    (third / "data.bin").unlink()
    (fourth / "data.bin").write_bytes(b"")

    prune(tmp_path, keep=2)
    assert 4 == len(names(tmp_path))

    prune(tmp_path, keep=1)
    assert ["step-00000002", "step-00000003", "step-00000004"] == names(tmp_path)


def test_prune_counts_an_interrupted_save(tmp_path: Path) -> None:
    _, second = write(tmp_path, 1, 2)
    second.rename(tmp_path / ".old-step-00000002")

    prune(tmp_path, keep=1)

    assert ["step-00000002"] == names(tmp_path)


def test_prune_takes_the_replaced_one_along(tmp_path: Path) -> None:
    first, _ = write(tmp_path, 1, 2)
    first.rename(tmp_path / "aside")
    write(tmp_path, 1)
    (tmp_path / "aside").rename(tmp_path / ".old-step-00000001")

    prune(tmp_path, keep=1)

    assert ["step-00000002"] == names(tmp_path)


def test_prune_keeps_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"at least 1 checkpoint \(got 0\)"):
        prune(tmp_path, keep=0)


def test_prune_names_what_it_cannot_delete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = write(tmp_path, 1, 2)

    def rename(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(CheckpointError, match=f"cannot delete checkpoint {first}: Device or"):
        prune(tmp_path, keep=1)

    assert [] == verify(first)
