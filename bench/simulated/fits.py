"""Find the largest model and the longest context that fit each card, by bisection. Simulated.

    python bench/simulated/fits.py --json docs/benchmarks/fits.json --page docs/benchmarks/fits.md

Each trial is a dry run of `neaptide plan` in a process of its own, and is kept at once: a rerun
makes those that are missing. `--seconds 200` ends after this time. Nothing is measured. With
`--check rtx4070`, the context of 1B that this card binds is trained on the simulated GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scaling.fits import checks, fitting
from scaling.fits.tables import contexts, models
from scaling.fits.trials import planned
from scaling.table import put_into

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scaling.fits.trials import Trial

    Rows = dict[str, list[dict[str, Any]]]

OPTIMIZER = "adamw"
CARDS = ("rtx4070", "t4", "rtx4080", "rtx3090", "rtx4090", "a100", "h200")
"""The smallest first."""
TABLES = ("models", "contexts", "checks")
MARKS = {name: (f"<!-- {name}: begin -->", f"<!-- {name}: end -->") for name in TABLES}


FORKS = multiprocessing.get_context("fork")


class TimeOverError(Exception):
    """The time that was given is over."""


class Runs:
    """Dry runs by the names of their trials.

    Args:
        file: where they are kept.
        seconds: time until a missing one raises `TimeOverError`; 0 makes none.
    """

    def __init__(self, file: Path | None, seconds: float) -> None:
        self.file, self.end = file, time.monotonic() + seconds
        there = file is not None and file.exists()
        read = json.loads(file.read_text("utf-8")) if file and there else {"runs": {}}
        self.known: dict[str, dict[str, Any]] = read.pop("runs")
        self.rows: Rows = read

    def __call__(self, trial: Trial) -> dict[str, Any]:
        """Return a dry run, which is made if it is missing."""
        if trial.key not in self.known:
            if time.monotonic() > self.end:
                raise TimeOverError(trial.key)
            self.known[trial.key] = in_a_process(trial)
            self.keep()
        return self.known[trial.key]

    def keep(self) -> None:
        """Write the file, a line for each dry run and each row."""
        if self.file is None:
            return
        runs = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in self.known.items()
        )
        text = f'{{\n "runs": {{\n{runs}\n }}'
        for name, rows in self.rows.items():
            text += (
                f',\n "{name}": [\n' + ",\n".join(f"  {json.dumps(one)}" for one in rows) + "\n ]"
            )
        self.file.write_text(text + "\n}\n", encoding="utf-8")


def in_a_process(trial: Trial) -> dict[str, Any]:
    """Plan in a process of its own, so that its RAM is that of one plan.

    The process is a fork of this one, which has made no tensor and has one thread.
    """
    with FORKS.Pool(1) as pool:
        found: dict[str, Any] = pool.apply(planned, (trial,))
    print(trial.key, file=sys.stderr, flush=True)
    return found


def model_rows(run: fitting.Run, cards: Sequence[str] = CARDS) -> Iterator[dict[str, Any]]:
    """Yield the largest model of each machine."""
    for machine in fitting.machines(cards):
        yield fitting.largest_model(machine, OPTIMIZER, run)


def context_rows(run: fitting.Run, cards: Sequence[str] = CARDS) -> Iterator[dict[str, Any]]:
    """Yield the longest context of each machine and model."""
    for model in fitting.MODELS:
        for machine in fitting.machines(cards):
            found = fitting.longest_context(machine, model, OPTIMIZER, run)
            if found is not None:
                yield {"model": model, **found}


def every_row(run: fitting.Run, cards: Sequence[str] = CARDS) -> Rows:
    """Return the rows of both tables."""
    return {"models": [*model_rows(run, cards)], "contexts": [*context_rows(run, cards)]}


def tables(rows: Rows) -> dict[str, str]:
    """Return the tables as Markdown."""
    return {
        "models": models(rows["models"]),
        "contexts": contexts(rows["contexts"]),
        "checks": checks.table(rows.get("checks", [])),
    }


def check(rows: Rows, card: str) -> None:
    """Train the context of the smallest model that a card binds."""
    model = next(iter(fitting.MODELS))
    bound = (
        row
        for row in rows["contexts"]
        if (row["card"], row["model"], row["binds"]) == (card, model, "device")
    )
    kept = [row for row in rows.get("checks", []) if row["card"] != card]
    rows["checks"] = kept + [checks.checked(row) for row in islice(bound, 1)]


def main(argv: Sequence[str] | None = None) -> int:
    """Make the dry runs that are missing, and write them; return 1 if the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--cards", default=",".join(CARDS), help="such as `rtx4090,t4`")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this time")
    parser.add_argument("--check", metavar="CARD", help="train its contexts on the simulated GPU")
    parser.add_argument("--one", metavar="ROW", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.one:
        checks.train(json.loads(given.one))
    runs = Runs(given.json, given.seconds)
    try:
        runs.rows |= every_row(runs, [card for card in CARDS if card in given.cards.split(",")])
    except TimeOverError as over:
        print(f"fits: the time is over before {over}; call it again", file=sys.stderr)
        return 1
    if given.check:
        check(runs.rows, given.check)
    runs.keep()
    for name, text in tables(runs.rows).items():
        print(f"{text}\n")
        if given.page:
            put_into(given.page, text, *MARKS[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
