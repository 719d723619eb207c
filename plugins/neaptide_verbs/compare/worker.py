"""`python -m neaptide_verbs.compare.worker`: train one trial for each JSON line on stdin.

A comparison starts several workers to train trials in parallel. A worker trains many trials,
because importing torch takes longer than a small run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.errors import NeaptideError, described
from neaptide.run.signals import Interrupted

from .trials import TrainingTrial

if TYPE_CHECKING:
    from typing import TextIO


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer each request `{"label", "values", "directory"}` with a result or an error."""
    from .training import train  # noqa: PLC0415 - imports torch

    for line in requests:
        asked = json.loads(line)
        try:
            result = train(TrainingTrial(asked["label"], asked["values"]), Path(asked["directory"]))
            answer: dict[str, Any] = {"result": attrs.asdict(result)}
        except Interrupted as error:
            answer = {"stopped": str(error)}
        except NeaptideError as error:
            answer = {"error": str(error), "exit_code": error.exit_code}
        except Exception as error:  # noqa: BLE001 - code of users may raise anything
            notes = "; ".join(getattr(error, "__notes__", ()))
            text = described(error) + (f" ({notes})" if notes else "")
            traceback.print_exc()  # printed to the workers' log, whose path is in the error message
            answer = {"error": " ".join(text.split()), "exit_code": 1, "logged": True}
        with suppress(BrokenPipeError):  # the comparison has ended; the result is in its file
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        if "stopped" in answer:
            return


def stop_when_orphaned(parent: int, look: float = 1.0) -> None:
    """When the process `parent` has ended, make this process save and stop, as after a signal.

    `look` is the number of seconds between two checks. A killed comparison cannot stop its workers,
    so without the checks a trial could train for hours.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(look)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main() -> None:
    """Read requests from stdin and write answers to stdout.

    Output of training code goes to stderr.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    stop_when_orphaned(os.getppid())
    # Makes `my_module:factory` importable from the current folder, like python -m.
    sys.path.insert(0, str(Path.cwd()))
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
