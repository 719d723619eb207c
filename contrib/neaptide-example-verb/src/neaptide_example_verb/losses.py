"""`neaptide losses`: the losses of a run as one line of block characters."""

# The command line evaluates the annotations when the verb is called. So the names in the
# annotations must be imported here, and not under TYPE_CHECKING.

import csv
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from neaptide import RunDirectoryError
from neaptide.cli.output import AsJson, print_json, print_text

BLOCKS = "▁▂▃▄▅▆▇█"


def losses(
    run: Annotated[Path, Parameter(help="A run directory.")],
    /,
    *,
    width: Annotated[int, Parameter(validator=Number(gte=1), help="Most blocks to draw.")] = 60,
    json: AsJson = False,
) -> None:
    """Draw the training losses of a run as a line. Each block shows the mean of some updates."""
    means = _means(_read(run / "steps.csv"), width)
    if json:
        print_json({"run": str(run), "losses": means})
    else:
        print_text(f"{_drawn(means)}  {means[0]:.4g} -> {means[-1]:.4g}")


def _read(path: Path) -> list[float]:
    """Return the loss of each update. Losses of predicted jumps are left out."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("was_predicted") == "false"]
        found = [float(row["loss"]) for row in rows]
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}; give a run directory"
        raise RunDirectoryError(msg) from error
    except (KeyError, ValueError) as error:
        msg = f"{path} is damaged: {error}"
        raise RunDirectoryError(msg) from error
    finite = [loss for loss in found if isfinite(loss)]
    if not finite:
        msg = f"{path} has no losses yet"
        raise RunDirectoryError(msg)
    return finite


def _means(values: Sequence[float], width: int) -> list[float]:
    count = min(width, len(values))
    edges = [len(values) * part // count for part in range(count + 1)]
    parts = [values[start:end] for start, end in pairwise(edges)]
    return [sum(part) / len(part) for part in parts]


def _drawn(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in values)
