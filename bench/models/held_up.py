"""Seconds by which a save holds training up: at once, and with `background-save`.

    python bench/models/held_up.py [--gib G] [--rounds N] [--updates N] [--batch N]
                                   [--folder DIR] [--json PATH]

Layers with AdamW's state, in float32, as in checkpoints.py. Each round trains as many updates three
times, in an order that changes: without a save, after a save at once, and after a save in the
background has begun. `standing` is the time in which no update runs. `slower` is what the updates
take longer than without a save: a thread that computes digests and writes needs cores and memory,
as training does. `under way` lasts from the begin of the save until the checkpoint is complete. The
share is standing and slower together, of the training between two saves of the default
`run.checkpoint_minutes`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from loads.figures import shown
from loads.memory import have_memory
from saves.ways import WAYS, size_of, state_of

from neaptide.config.schema import RunSection
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NONE = "no save"
SAVES = ("neaptide", "background-save")
_GIB = 2**30


def one(name: str, held: Any, folder: Path, train: Callable[[], object]) -> dict[str, float]:
    """Train after a save by `name` has returned; wait until the checkpoint is complete."""
    os.sync()
    on_the_wall, began = time.time(), time.perf_counter()
    if name != NONE:
        WAYS[name].save(held, folder)
    stood = time.perf_counter()
    train()
    found = {"standing": stood - began, "training": time.perf_counter() - stood}
    if name != NONE:
        finish = WAYS[name].finish
        if finish is not None:
            finish()
        complete = (folder / "saved" / "manifest.json").stat().st_mtime  # the last file
        found["under_way"] = complete - on_the_wall
        shutil.rmtree(folder / "saved")
    return found


def rounds(folder: Path, given: argparse.Namespace) -> Iterator[dict[str, dict[str, float]]]:
    """Yield what each way takes, round by round. The first round, which warms up, is left out."""
    held = state_of(given.gib)
    have_memory(2 * size_of(held))
    batch = torch.randn(given.batch, held.model[0].in_features)  # type: ignore[index,union-attr]

    def train() -> None:
        for _ in range(given.updates):
            held.step(batch)

    order, shuffle = [NONE, *SAVES], random.Random(0)  # noqa: S311 - random order, no secret
    for number in range(given.rounds + 1):
        shuffle.shuffle(order)
        found = {name: one(name, held, folder, train) for name in order}
        if number:
            yield found


def rows(found: list[dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the figures of each save, one value a round."""
    between = 60 * RunSection().checkpoint_minutes
    made = []
    for name in SAVES:
        each = [one[name] for one in found]
        slower = [one[name]["training"] - one[NONE]["training"] for one in found]
        held = [one["standing"] + more for one, more in zip(each, slower, strict=True)]
        made.append(
            {
                "way": name,
                "standing": [one["standing"] for one in each],
                "slower": slower,
                "under_way": [one["under_way"] for one in each],
                "share": [seconds / between for seconds in held],
            }
        )
    return made


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=3.0, help="weights and state together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=8, help="they last longer than a save")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        found = [*rounds(Path(made), given)]
    table = rows(found)
    alone = [one[NONE]["training"] / given.updates for one in found]
    print(f"an update without a save: {shown(alone, '.2f')} s; {given.updates} in each training\n")
    print("| save | s standing | s slower | s under way | share |")
    print("|---|---|---|---|---|")
    for row in table:
        cells = [shown(row[name], ".2f") for name in ("standing", "slower", "under_way")]
        print(f"| {row['way']} | {' | '.join(cells)} | {shown(row['share'], '.2%')} |")
    if given.json:
        report = {"machine": facts(), "gib": given.gib, "update": alone, "saves": table}
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
