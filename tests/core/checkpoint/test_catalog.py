"""The checkpoints of a run: their order, the newest one that can be relied on, and pruning."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

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

    def rename(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "replace", rename)
    with pytest.raises(CheckpointError, match=f"cannot delete checkpoint {first}: Device or"):
        prune(tmp_path, keep=1)

    assert [] == verify(first)


def test_a_checkpoint_under_the_name_of_another_step_is_refused_and_outlives_none(
    tmp_path: Path,
) -> None:
    first, _, third = write(tmp_path, 1, 2, 3)
    forged = first.rename(step_directory(tmp_path, 9))
    assert [f"{forged} is of step 1; give it the name of that step, or remove it"] == verify(forged)
    newest, (warning,) = newest_valid(tmp_path)
    assert third == newest
    assert "step-00000009 is skipped" in warning
    prune(tmp_path, keep=1)
    assert [third.name] == names(tmp_path)
    with pytest.raises(CheckpointError, match="would hold the checkpoint of step 4"):
        write_as(tmp_path, 5, 4)
    assert not step_directory(tmp_path, 5).exists()


def test_a_renamed_checkpoint_is_as_old_as_its_manifest_says_and_is_not_counted(
    tmp_path: Path,
) -> None:
    write(tmp_path, *range(2, 9))
    step_directory(tmp_path, 8).rename(step_directory(tmp_path, 1))  # the newest looks the oldest
    step_directory(tmp_path, 2).rename(step_directory(tmp_path, 70))
    step_directory(tmp_path, 3).rename(step_directory(tmp_path, 80))
    (step_directory(tmp_path, 80) / "manifest.json").write_text("{}")  # only its name is left
    (step_directory(tmp_path, 90)).write_text("a file")
    prune(tmp_path, keep=2)
    kept = [step_directory(tmp_path, step) for step in (1, 6, 7, 80, 90)]
    assert kept == checkpoints(tmp_path)
    newest, warnings = newest_valid(tmp_path)
    assert step_directory(tmp_path, 7) == newest
    assert ["\n" in warning for warning in warnings] == [False, False]
    step_directory(tmp_path, 1).rename(step_directory(tmp_path, 8))
    prune(tmp_path, keep=1)
    assert step_directory(tmp_path, 8) == newest_valid(tmp_path)[0]
    assert not step_directory(tmp_path, 7).exists()


def write_as(root: Path, named: int, step: int) -> None:
    with writing(step_directory(root, named), step, {}):
        pass


def test_a_directory_that_cannot_be_listed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match=r"cannot list .*: File name too long"):
        checkpoints(tmp_path / ("x" * 300))

    def failing(self: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))

    monkeypatch.setattr("neaptide.io.folder.Folder.names", failing)
    for listing in (lambda: checkpoints(tmp_path), lambda: prune(tmp_path, 1)):
        with pytest.raises(CheckpointError, match=r"cannot list .*: Input/output error"):
            listing()


def test_a_file_is_a_directory_without_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert [] == checkpoints(tmp_path / "file")
