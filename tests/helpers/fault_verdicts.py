"""What becomes of a run after a fault, in one word; and the counts of these words."""

from __future__ import annotations

import io
import logging
import os
import shutil
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from fault_run import NEWEST, fit
from folders import tree

from neaptide import NeaptideError
from neaptide.checkpoint import verify
from neaptide.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FINE = ("refused", "survived")
KINDS = {
    "refused": "refused in one line",
    "survived": "survived",
    "foreign": "with a foreign traceback",
    "accepted": "accepted",
    "untold": "not told, or in several lines",
    "stuck": "that no resume mends",
    "hung": "hung",
    "outside": "that changed a file outside",
    "unreached": "not reached",
}


@attrs.frozen
class Verdict:
    """One of `KINDS`, and what was said."""

    kind: str
    said: str = ""


Judge = Callable[[Path, str], Verdict]
"""Given the run and the digest of an undisturbed run."""


@attrs.frozen
class Fault:
    """One fault. `commit` gives a verdict where the run itself ran into the fault."""

    name: str
    commit: Callable[[Path], Verdict | None]
    judge: Judge


def judged(attempt: Callable[[], str], expected: str) -> Verdict:
    """Make an attempt, which returns a digest."""
    try:
        digest = attempt()
    except NeaptideError as error:
        said = str(error)
        return Verdict("refused" if len(said.splitlines()) == 1 else "untold", said)
    except (Exception, SystemExit):  # noqa: BLE001 - whatever it is, it is counted
        return Verdict("foreign", traceback.format_exc())
    return Verdict("survived" if digest == expected else "accepted", digest)


class _Heard(logging.Handler):
    """Notes all warnings of Neaptide."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("neaptide").addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger("neaptide").removeHandler(self)


def auto(run: Path, expected: str, *, allow_changes: bool = False) -> Verdict:
    """Resume from the newest valid checkpoint; a damaged one must be named in a warning."""
    newest = run / NEWEST
    damaged = os.path.lexists(newest) and bool(verify(newest))
    with _Heard() as lines:
        found = judged(lambda: fit(run, "auto", allow_changes=allow_changes), expected)
    if found.kind == "survived" and damaged and not any("is skipped" in line for line in lines):
        return Verdict("untold", "a damaged checkpoint was skipped without a warning")
    return found


def without_the_plugin(run: Path, expected: str) -> Verdict:
    """Resume without a plugin that the checkpoint may name."""
    return auto(run, expected, allow_changes=True)


def newest(run: Path, expected: str) -> Verdict:
    """Resume from the newest checkpoint by its path."""
    return judged(lambda: fit(run, run / NEWEST), expected)


def _called(*words: str) -> tuple[int, str]:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        code = main(words)
    return code, said.getvalue()


def verified(run: Path, expected: str) -> Verdict:
    """Let `neaptide ckpt verify` look for the damage."""
    code, said = _called("ckpt", "verify", str(run))
    if "Traceback" in said:
        return Verdict("foreign", said)
    return Verdict("refused" if code else "accepted", said)


def reported(run: Path, expected: str) -> Verdict:
    """Let `neaptide report` read the records."""
    code, said = _called("report", str(run))
    if "Traceback" in said:
        return Verdict("foreign", said)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if code == 0:
        return Verdict("untold" if errors else "survived", said)
    return Verdict("refused" if len(errors) == 1 else "untold", said)


def tried(fault: Fault, template: Path, root: Path, expected: str) -> Verdict:
    """Commit the fault on a copy of the template below `root`, and judge it."""
    shutil.copytree(template, root)
    run = root / "run"
    before = tree(root / "mine")
    found = fault.commit(run)
    if found is None or found.kind in FINE:
        after = fault.judge(run, expected)
        if found is not None and after.kind == "refused":
            after = Verdict("stuck", after.said)  # without the fault the run must go on
        found = after if found is None or after.kind != "survived" else found
    if before != tree(root / "mine") or {"mine", "run"} != {path.name for path in root.iterdir()}:
        return Verdict("outside", f"{sorted(tree(root / 'mine'))} {os.listdir(root)}")  # noqa: PTH208
    return found


def once(edit: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a commit that gives no verdict."""

    def commit(run: Path) -> None:
        edit(run)

    return commit


def in_turn(
    edits: Iterable[tuple[str, Callable[[Path], object]]], *judges: Judge
) -> Iterator[Fault]:
    """Yield a fault for each edit; the judges take turns."""
    for place, (name, edit) in enumerate(edits):
        judge = judges[place % len(judges)]
        yield Fault(f"{name} ({judge.__name__})", once(edit), judge)


def counted(kinds: Iterable[str]) -> str:
    """Return the counts as one line."""
    found = list(kinds)
    shown = [
        f"{found.count(kind):,} {text}"
        for kind, text in KINDS.items()
        if kind not in {"hung", "stuck", "unreached"} or kind in found
    ]
    return f"faults: {len(found) - found.count('unreached'):,} tried, {', '.join(shown)}"
