"""`python -m neaptide_verbs.plan.answering`: plan the question on stdin; answer on stdout, in JSON.

The question is what `asking.ask` writes, and the answer has the fields of `asking.Answer`.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Any

import attrs

from neaptide.config import loads
from neaptide.errors import NeaptideError, described
from neaptide.hooks.enabling import configured
from neaptide_toolkit.machine.profiles import Rates

from .asking import Answer
from .auto.choosing import chosen
from .machine import PlannedMachine
from .search import with_changes
from .value import verdict


def answer(question: dict[str, Any]) -> Answer:
    """Return the answer to a question."""
    given = question["machine"]
    rates = None if given["rates"] is None else Rates(**given["rates"])
    machine = PlannedMachine(**{**given, "rates": rates})
    try:
        config, _ = configured(loads(question["config"]))
        config, made = chosen(config, machine)
        if not made.fits:
            made = with_changes(made, config, machine)
    except NeaptideError as error:
        return Answer(problem=str(error).splitlines()[0])
    except Exception as error:  # noqa: BLE001 - code of users may raise anything
        return Answer(problem=described(error))
    best = made.changes[0] if made.changes else None
    return Answer(
        fits=made.fits,
        verdict=verdict(made),
        needed=made.peak_bytes,
        best=None if best is None else str(best),
        chosen=None if made.choice is None else dict(made.choice.settings),
    )


def main() -> None:
    """Answer one question."""
    question = json.load(sys.stdin)
    sys.path[:] = question["path"]
    with redirect_stdout(sys.stderr):  # the user's code may print
        found = answer(question)
    sys.stdout.write(json.dumps(attrs.asdict(found)) + "\n")


if __name__ == "__main__":
    main()
