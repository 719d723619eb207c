"""`neaptide ckpt size`: the bytes of files of the same name, summed over a run's checkpoints."""

from collections import Counter
from pathlib import Path

from neaptide import WrongCheckpointError
from neaptide.cli.output import AsJson, print_json, print_table


def size(run: Path, /, *, json: AsJson = False) -> None:
    """Sum the bytes of a run's checkpoints by file name; print the largest sum first."""
    found = Counter[str]()
    for path in run.glob("checkpoints/step-*/*"):
        found[path.name] += path.stat().st_size
    if not found:
        msg = f"there is no checkpoint in {run}; give a run directory"
        raise WrongCheckpointError(msg)
    if json:
        print_json(dict(found.most_common()))
    else:
        print_table((name, f"{count:,} bytes") for name, count in found.most_common())
