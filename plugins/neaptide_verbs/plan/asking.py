"""Asks a process of its own for a plan: the run's memory and random state stay as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config import dumps, unstructure
from neaptide.errors import described
from neaptide_toolkit.ranks.launching import alone

if TYPE_CHECKING:
    from neaptide.config import RunConfig

    from .machine import PlannedMachine

LONGEST = 600.0
"""Seconds that a plan and its search may take."""


@attrs.frozen(kw_only=True)
class Answer:
    """What a run needs to know of its plan.

    Attributes:
        verdict: one line.
        needed: bytes by tier.
        best: the best change with which it fits, as settings; None if none was found.
        chosen: settings that the plan chose, as tables; None if nothing was to be chosen.
        problem: why there is no plan; everything else is empty then.
    """

    fits: bool = True
    verdict: str = ""
    needed: dict[str, int] = attrs.field(factory=dict)
    best: str | None = None
    chosen: dict[str, Any] | None = None
    problem: str | None = None


def ask(config: RunConfig, machine: PlannedMachine) -> Answer:
    """Return what a plan says. Code that cannot be planned is no error of the run."""
    question = {
        "config": dumps(unstructure(config)),
        "machine": attrs.asdict(machine),
        "path": sys.path,
    }
    command = [sys.executable, "-m", f"{__package__}.answering"]
    try:
        done = subprocess.run(  # noqa: S603 - this Python, and a module of this package
            command,
            input=json.dumps(question),
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
            env=alone(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(problem=described(error))
    try:
        return Answer(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        last = done.stderr.strip().splitlines()[-1:]
        told = f": {last[0]}" if last else ""
        return Answer(problem=f"its process ended with {done.returncode}{told}")
