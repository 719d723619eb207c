"""The line of a run on a real terminal, stopped by a key press."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = 80
CONTROL = re.compile(r"\x1b\[\??(\d*)(?:;\d+)*([A-Za-z])")


def screen(text: str) -> list[str]:
    """Return the rows that a terminal of 80 columns shows after `text`, without spaces at the end.

    It knows what the line needs: rows, carriage returns, `erase line`, `cursor up`, and that a
    character behind the last column goes to the next row.
    """
    rows, row, column, at = [[" "] * COLUMNS], 0, 0, 0
    while at < len(text):
        found = CONTROL.match(text, at)
        if found:
            at = found.end()
            if found[2] == "K":
                rows[row] = [" "] * COLUMNS
            elif found[2] == "A":
                row = max(0, row - int(found[1] or 1))
            continue
        sign, at = text[at], at + 1
        if sign == "\r":
            column = 0
            continue
        if sign == "\n" or column == COLUMNS:
            row, column = row + 1, column if sign == "\n" else 0
            if row == len(rows):
                rows.append([" "] * COLUMNS)
        if sign != "\n":
            rows[row][column] = sign
            column += 1
    return ["".join(each).rstrip() for each in rows]


def test_a_character_behind_the_last_column_goes_to_the_next_row() -> None:
    assert ["x" * 80, "^C"] == screen("x" * 80 + "^C\r")
    assert ["b", ""] == screen("a\r\x1b[2Kb\r\n")


def own_terminal() -> None:
    """Make stdin the terminal of this process, so that a key reaches it as a signal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_after_ctrl_c_the_line_is_there_once(folder: Path, environment: dict[str, str]) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "neaptide", "run", "tiny.toml", "--set", "data.options.seconds=0.2"],
        cwd=folder,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=own_terminal,  # noqa: PLW1509 - no threads
    )
    os.close(slave)
    written, pressed = b"", False
    try:
        while read := _read(master):
            written += read
            if not pressed and b"loss" in written:
                os.write(master, b"\x03")
                pressed = True
        assert 130 == process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(master)
    shown = screen(written.decode())
    lines = [row for row in shown if "/24" in row]
    assert 1 == len(lines), shown
    assert re.search(r"/24  loss \d+\.\d{4}  lr 0\.\d+ ", lines[0])
    assert 1 == sum(row.startswith("stopped by signal 2 after update ") for row in shown)
    assert b"^C" in written
    assert not any(" - " in row or "^C" in row for row in lines)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux, once no process has the terminal
        return b""
