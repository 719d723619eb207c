"""Rows of `simulated/fits.py`, trained on the simulated GPU: does the card really have the room?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from neaptide_toolkit.machine import profiles
from neaptide_verbs.plan.machine import CONTEXT
from scaling.configurations import SHAPES, Configuration
from scaling.fits.fitting import MODELS, STEP
from scaling.fits.trials import shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT = Path(__file__).parents[2] / "simulated" / "fits.py"
GIB = 2**30
PARTS = 16
"""A context that does not train is shortened by a sixteenth of the first."""


def checked(row: dict[str, Any]) -> dict[str, Any]:
    """Train a row of contexts, and shorter ones until one trains; return what it took.

    The device has the memory of the card, less what CUDA takes: more is an error.
    """
    told = {name: row[name] for name in ("card", "ram_gib", "model", "context", "device")}
    part = max(STEP, row["context"] // PARTS // STEP * STEP)
    for context in range(row["context"], 0, -part):
        found = _in_a_process({**row, "context": context})
        if found is not None:
            return {**told, "trained": context, **found}
    msg = f"no context of {row['model']} trains on {row['card']}"
    raise SystemExit(msg)


def _in_a_process(row: dict[str, Any]) -> dict[str, Any] | None:
    """Train in a process of its own; None if memory was too little."""
    program = ["-W", "ignore", "-m", "simulated_gpu", str(SCRIPT)]
    command = [sys.executable, *program, "--one", json.dumps(row)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    if "OutOfMemoryError" in done.stderr:
        return None
    msg = f"{row['model']} on {row['card']}: {done.stderr.strip()[-2000:]}"
    raise SystemExit(msg)


def train(row: dict[str, Any]) -> NoReturn:
    """Train a row of contexts in this process; print the bytes that it took of the card."""
    from scaling.simulation import train as simulate  # noqa: PLC0415 - only on the simulated GPU

    SHAPES["fits"] = shape_of(*MODELS[row["model"]])
    one = Configuration("fits", "fits", None, row["context"], row["context"])
    capacity = profiles.load(row["card"]).rates.capacity - CONTEXT
    on_card = "inputs on the card" in row["way"]
    ways = {"max_active_layers": 1, "optimizer_slots": 1, "clip": "none"}
    ways |= {"inputs": "device"} if on_card else {}
    traced = simulate(one, row["card"], capacity, 1, ways, {"fused": True})  # as a run's is
    allocated, reserved = (peak + CONTEXT for peak in traced.peaks)
    print(json.dumps({"allocated": allocated, "reserved": reserved, "races": traced.races}))
    sys.stdout.flush()
    os._exit(0)  # a model of this size need not be taken apart


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    head = (
        "card, GiB",
        "model",
        "longest by the plan",
        "its GiB",
        "longest that trained",
        "its GiB",
    )
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        has = profiles.load(row["card"]).rates.capacity / GIB
        planned = (f"{row['context']:,}", f"{row['device'] / GIB:.1f}")
        trained = (f"{row['trained']:,}", f"{row['reserved'] / GIB:.1f}")
        cells = (f"{row['card']}, {has:.0f}", row["model"], *planned, *trained)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
