"""No link leads out of a folder; a file is replaced as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from limits import no_file_beyond

from neaptide.io.folder import Folder, replace_file, resolved

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_file_is_made_and_replaced_with_nothing_beside_it(tmp_path: Path) -> None:
    for content in (b"old", b"\xff new"):
        replace_file(tmp_path / "a.txt", content)
        assert [(tmp_path / "a.txt", content)] == [(p, p.read_bytes()) for p in tmp_path.iterdir()]


def test_where_it_cannot_be_put_in_place_nothing_is_left_beside(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "a.txt", b"new")
    assert ["a.txt"] == [path.name for path in tmp_path.iterdir()]


def test_a_disk_that_takes_a_part_leaves_the_old_file_alone(tmp_path: Path) -> None:
    replace_file(tmp_path / "a.txt", b"old")
    with no_file_beyond(1000), pytest.raises(OSError, match="File too large"):
        replace_file(tmp_path / "a.txt", bytes(5000))
    assert [b"old"] == [path.read_bytes() for path in tmp_path.iterdir()]


def a_link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def a_hard_link(path: Path, elsewhere: Path) -> None:
    path.hardlink_to(elsewhere)


def a_pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path, _: Path) -> None:
    path.mkdir()


def a_folder_in_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


KINDS = {
    a_link: "is a symbolic link",
    a_hard_link: "has another hard link",
    a_pipe: "is not a regular file",
    a_folder: "irectory|is not a regular file",
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_regular_file_of_its_own_is_opened_for_writing(
    tmp_path: Path, kind: Callable[[Path, Path], None]
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine", encoding="utf-8")
    folder = Folder(tmp_path / "folder", make=True)
    kind(folder.path / "file", mine)
    for flags in (os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(OSError, match=KINDS[kind]):
            folder.open("file", flags)
    assert "mine" == mine.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [a_link, a_pipe])
def test_what_is_no_file_is_not_read_and_does_not_hang(
    tmp_path: Path, kind: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "mine").write_text("mine", encoding="utf-8")
    kind(tmp_path / "file", tmp_path / "mine")
    with pytest.raises(OSError, match=KINDS[kind]):
        Folder(tmp_path).read("file")


@pytest.mark.parametrize("kind", [a_link, a_hard_link, a_pipe])
def test_replacing_a_link_replaces_the_link(
    tmp_path: Path, kind: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "mine").write_text("mine", encoding="utf-8")
    kind(tmp_path / "file", tmp_path / "mine")
    Folder(tmp_path).replace("file", b"new")
    assert ["file", "mine"] == sorted(path.name for path in tmp_path.iterdir())
    assert ("new", "mine") == tuple(
        (tmp_path / name).read_text(encoding="utf-8") for name in ("file", "mine")
    )


def test_a_linked_folder_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "mine")
    for make in (False, True):
        with pytest.raises(NotADirectoryError, match="linked is a symbolic link"):
            Folder(tmp_path).folder("linked", make=make)


def test_a_folder_that_is_swapped_for_a_link_is_still_the_one_that_was_opened(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").mkdir()
    folder = Folder(tmp_path / "folder", make=True)
    inner = folder.folder("inner", make=True)
    inner.path.rename(tmp_path / "moved")
    inner.path.symlink_to(tmp_path / "mine")
    inner.replace("file", b"new")
    assert [] == list((tmp_path / "mine").iterdir())
    assert b"new" == (tmp_path / "moved/file").read_bytes()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b"])
def test_a_name_is_one_part_of_a_path(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path)
    for use in (folder.open, folder.read, folder.folder, folder.stat, folder.unlink):
        with pytest.raises(ValueError, match="is not the name of a file in a folder"):
            use(name)


def test_what_a_killed_process_left_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    kept = [".report.html.tmp", ".0123456789abcdef.tmp", "a.0123456789abcdef.tmp", ".lock", "mine"]
    for name in (*kept[:-1], ".a.csv.0123456789abcdef.tmp"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".b.0123456789abcdef.tmp").symlink_to(tmp_path / "mine")
    folder = Folder(tmp_path)
    folder.clear()
    assert sorted(kept) == folder.names()
    assert b"mine" == folder.read("mine")


def test_a_file_longer_than_the_limit_is_not_read(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.replace("file", b"12345")
    assert b"12345" == folder.read("file", 5)
    with pytest.raises(OSError, match="File too large"):
        folder.read("file", 4)


def test_a_folder_that_is_made_again_is_opened_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "folder", make=True)
    folder.path.rmdir()
    with pytest.raises(FileNotFoundError):
        folder.replace("file", b"lost")
    folder.path.mkdir()
    folder.replace("file", b"new")
    assert b"new" == (folder.path / "file").read_bytes()


def test_a_closed_folder_leaves_no_descriptor(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    for close in (True, False):
        folder = Folder(tmp_path)
        folder.replace("file", b"new")
        folder.folder("inner", make=True).names()
        if close:
            folder.close()
            folder.close()
        del folder
        assert before == psutil.Process().num_fds()


def test_a_folder_that_is_made_again_as_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    outer = Folder(tmp_path / "run", make=True)
    inner = outer.folder("inner", make=True)
    for folder in (inner, outer):
        folder.path.rmdir()
        folder.path.symlink_to(tmp_path / "mine")
        with pytest.raises(OSError, match=r"symbolic|Not a directory|Too many"):
            folder.replace("file", b"leaked")
        folder.path.unlink()
    assert [] == list((tmp_path / "mine").iterdir())


def test_a_closed_folder_is_used_no_more(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.close()
    for use in (folder.names, folder.clear, lambda: folder.read("file")):
        with pytest.raises(ValueError, match="is closed"):
            use()


@pytest.mark.parametrize("becomes", [Path.unlink, a_folder_in_place], ids=["gone", "a folder"])
def test_a_link_that_changes_while_it_is_followed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, becomes: Callable[[Path], None]
) -> None:
    link, read = tmp_path / "run", os.readlink
    link.symlink_to(tmp_path / "mine")

    def changing(path: str) -> str:
        becomes(link)
        return read(path)

    monkeypatch.setattr(os, "readlink", changing)
    assert tmp_path.resolve() / "run/checkpoints" == resolved(link / "checkpoints")
