"""Measure the time that Neaptide adds to a step of the trainers of other libraries.

    python bench/models/inside_trainers.py [--library NAME]... [--json PATH] [--rounds N]
                                           [--steps N] [--tokens N]

A library trains a Llama of 10 million parameters alone, and with Neaptide inside: on the same
batches, with clipping and a schedule, without plugins. In each round both train anew, one after the
other, in an order that changes from round to round. A step lasts from the end of a step to the end
of the next; the first steps of a training are left out. A figure is the median, over the rounds, of
the ratio of the two median steps: in time of the wall, and in time of the process, which other
programs on a machine disturb less. The losses of both must be equal to the bit.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch

from neaptide_toolkit.machine.facts import facts

LIBRARIES = ("transformers", "accelerate", "lightning")


def measure(library: str, rounds: int, *, steps: int, tokens: int, pieces: int) -> dict[str, Any]:
    """Return the figures for one number of micro-batches in an update."""
    trained = import_module(f"inside.in_{library}").trained
    taken: dict[bool, list[list[float]]] = {False: [], True: []}
    order, shuffle = [False, True], random.Random(0)  # noqa: S311 - random order, no secret
    for _ in range(rounds):
        shuffle.shuffle(order)
        losses = []
        for ours in order:
            seconds, found = trained(ours=ours, steps=steps, tokens=tokens, pieces=pieces)
            taken[ours].append(seconds)
            losses.append(found)
        assert losses[0] == losses[1], "both make the same computation"
    row: dict[str, Any] = {"library": library, "gradient_accumulation_steps": pieces}
    for place, clock in enumerate(("wall", "process")):
        theirs, own = ([one[place] for one in taken[ours]] for ours in (False, True))
        ratios = [one / other for one, other in zip(own, theirs, strict=True)]
        row[clock] = {
            "alone_ms": statistics.median(theirs) * 1e3,
            "inside_ms": statistics.median(own) * 1e3,
            "ratio": statistics.median(ratios),
            "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
        }
    return row


def main() -> None:
    """Measure, print a line for each row, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", action="append", choices=LIBRARIES)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    if options.rounds < 2:  # noqa: PLR2004 - quartiles
        parser.error(f"--rounds: at least 2, for quartiles (got {options.rounds})")
    torch.set_num_threads(1)
    rows = []
    for library in options.library or LIBRARIES:
        for pieces in (1, 4):
            row = measure(
                library, options.rounds, steps=options.steps, tokens=options.tokens, pieces=pieces
            )
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.json:
        found = {"machine": facts(), "options": vars(options), "rows": rows}
        found |= {name: metadata.version(name) for name in LIBRARIES}
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
