"""Damage to what a run wrote of itself: lines lost, doubled, cut, flipped, and what is no text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fault_damage import changed, flipped
from fault_verdicts import auto, in_turn, reported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fault_verdicts import Fault

READ_AGAIN = ("steps.csv", "metrics.jsonl", "events.jsonl", "config.toml", "summary.json")
OTHERS = (
    "machine.json",
    *(f"plugins/profiler/{name}.csv" for name in ("memory", "phases", "tiers")),
    "plugins/profiler/table.txt",
)


def _lines(edit: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    return lambda data: b"".join(edit(data.splitlines(keepends=True)))


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in half": lambda data: data[: len(data) // 2],
    "cut by a byte": lambda data: data[:-1],
    "zeroed": lambda data: bytes(len(data)),
    "doubled": lambda data: data + data,
    "first line doubled": _lines(lambda lines: [lines[0], *lines]),
    "last line doubled": _lines(lambda lines: [*lines, lines[-1]]),
    "without the first line": _lines(lambda lines: lines[1:]),
    "without a middle line": _lines(
        lambda lines: [*lines[: len(lines) // 2], *lines[len(lines) // 2 + 1 :]]
    ),
    "without the last line": _lines(lambda lines: lines[:-1]),
    "lines reversed": _lines(lambda lines: lines[::-1]),
    "two lines joined": _lines(lambda lines: [lines[0].rstrip(b"\n"), *lines[1:]]),
    "half a line": _lines(lambda lines: [*lines, lines[-1][: len(lines[-1]) // 2]]),
    **{f"flip {part}": flipped(part, 5) for part in range(5)},
    "NUL": lambda data: data + b"\0\n",
    "not UTF-8": lambda data: data + b"\xff\xfe\xfa\n",
    "a long line": lambda data: data + b"x" * 2**21 + b"\n",
    "nested deeply": lambda data: data + b"[" * 100_000 + b"\n",
    "a long number": lambda data: data + b"9" * 5_000 + b"\n",
    "a step that is huge": lambda data: data + b'{"step": 1e400}\n',
    "a step that is none": lambda data: data + b'{"step": [1]}\n',
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
}


def _each(names: tuple[str, ...]) -> Iterator[tuple[str, Callable[[Path], object]]]:
    for name in names:
        yield f"missing: {name}", lambda run, name=name: (run / name).unlink()
        for what, edit in EDITS.items():
            yield f"{what}: {name}", changed(Path(name), edit)


def records() -> Iterator[Fault]:
    """Yield every fault of a run's records."""
    yield from in_turn(_each(READ_AGAIN), auto)
    yield from in_turn(_each(READ_AGAIN), reported)
    yield from in_turn(_each(OTHERS), auto, reported)
