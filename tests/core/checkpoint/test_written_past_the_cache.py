"""Large files are written in pieces past the page cache: the same bytes, and errors are told."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from neaptide.checkpoint import files, read_manifest, verify, writing
from neaptide.errors import CheckpointError
from neaptide.io.locking import direct

if TYPE_CHECKING:
    from pathlib import Path

PIECE = 1 << 16
"""Small pieces, in whole blocks of every disk."""
needs_direct = pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no O_DIRECT")


def some(count: int) -> bytes:
    return bytes(range(251)) * (count // 251 + 1)


def write(directory: Path, content: bytes, steps: tuple[int, ...] = ()) -> None:
    """Write `content`, cut at `steps`."""
    with writing(directory, 1, {}) as writer, writer.file("x") as file:
        for begin, end in zip((0, *steps), (*steps, len(content)), strict=True):
            assert end - begin == file.write(content[begin:end])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PIECE", PIECE)


@pytest.fixture
def unaligned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Refuse what a file system with large blocks refuses; return the sizes of such writes."""
    real, refused = os.write, []

    def write(file: int, data: Any) -> int:
        if len(data) == PIECE and not refused:
            refused.append(len(data))
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    return refused


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 6 * PIECE, 7 * PIECE - 3])
@pytest.mark.parametrize("steps", [(), (8, 200), (PIECE - 8, PIECE + 8)])
def test_any_size_in_any_steps(tmp_path: Path, size: int, steps: tuple[int, ...]) -> None:
    content = some(size)[:size]
    write(tmp_path / "a", content, tuple(min(one, size) for one in steps))
    assert content == (tmp_path / "a" / "x").read_bytes()
    entry = read_manifest(tmp_path / "a").files["x"]
    assert (hashlib.sha256(content).hexdigest(), size) == (entry.sha256, entry.bytes)


def test_what_is_written_may_change_at_once(tmp_path: Path) -> None:
    """A loan of a weight ends after `write`: its memory has other values then."""
    room = bytearray(PIECE)
    with writing(tmp_path / "a", 1, {}) as writer, writer.file("x") as file:
        for number in range(9):
            room[:] = bytes([number]) * PIECE
            file.write(room)
            room[:] = bytes(PIECE)
    assert [] == verify(tmp_path / "a")
    assert [*range(9)] == [*(tmp_path / "a" / "x").read_bytes()[::PIECE]]


@needs_direct
def test_whole_pieces_go_past_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    modes, real = [], os.write

    def write_seen(file: int, data: Any) -> int:
        modes.append((len(data), bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)))
        return real(file, data)

    monkeypatch.setattr(os, "write", write_seen)
    with (tmp_path / "probe").open("wb") as file:
        able = direct(file.fileno(), wanted=True)
    write(tmp_path / "a", some(2 * PIECE + 5)[: 2 * PIECE + 5])
    assert [(PIECE, able), (PIECE, able), (5, False)] == modes[:3]


def test_a_file_system_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "direct", lambda *_, **__: False)
    content = some(3 * PIECE + 4096)
    write(tmp_path / "a", content)
    assert content == (tmp_path / "a" / "x").read_bytes()
    assert [] == verify(tmp_path / "a")


@needs_direct
def test_a_file_system_that_refuses_a_piece(tmp_path: Path, unaligned: list[int]) -> None:
    content = some(3 * PIECE)
    write(tmp_path / "a", content)
    assert [PIECE] == unaligned
    assert content == (tmp_path / "a" / "x").read_bytes()
    assert [] == verify(tmp_path / "a")


@pytest.mark.parametrize("failing", range(1, 7))
def test_an_error_at_any_piece_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    write(tmp_path / "a", b"old")
    real, count = os.write, [0]

    def write_failing(file: int, data: Any) -> int:
        count[0] += 1
        if count[0] == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data)

    monkeypatch.setattr(os, "write", write_failing)
    with pytest.raises(CheckpointError, match="No space left on device; free space or"):
        write(tmp_path / "a", some(6 * PIECE), (PIECE, 5 * PIECE))
    monkeypatch.undo()
    assert b"old" == (tmp_path / "a" / "x").read_bytes()
    assert ["a"] == [path.name for path in tmp_path.iterdir()]


def interrupted(directory: Path) -> None:
    with writing(directory, 1, {}) as writer:
        writer.file("x").write(some(3 * PIECE))
        raise KeyboardInterrupt


def test_no_thread_stays(tmp_path: Path) -> None:
    before = threading.active_count()
    write(tmp_path / "a", some(3 * PIECE))
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a")
    assert before == threading.active_count()
