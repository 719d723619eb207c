"""Peak memory of a stack: measured in a run, and planned by a dry run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide.errors import NeaptideError
from neaptide_toolkit.dry_run.running import dry_run
from neaptide_toolkit.testing.allocations import peak_of

from .runs import from_config
from .value import MemoryPeaks
from .watching import Wish

if TYPE_CHECKING:
    from .runs import Runs

STEPS = 3
"""As many as a dry run has."""


def measured(runs: Runs, names: frozenset[str], notes: list[str]) -> MemoryPeaks | None:
    """Return the peak of a run of a few updates, with all tensors that it makes, and its plan.

    Without a plan, the reason is added to `notes`.
    """
    if runs.make is not from_config:
        notes.append("memory is measured for a configuration that names its model")
        return None
    config = attrs.evolve(
        runs.stack.config, train=attrs.evolve(runs.stack.config.train, steps=STEPS)
    )
    few = type(runs)(attrs.evolve(runs.stack, config=config), runs.make)
    most = peak_of(lambda: few.of(names, Wish(bare=True)))
    run = few.of(names, Wish(bare=True))  # the same one
    if run.error is not None:
        notes.append(f"memory is not measured: {run.error}")
        return None
    kind = "cpu" if run.device == "cpu" else "cuda"
    try:
        planned = dry_run(few.stack.with_only(names)[0], (), kind).allocations
    except NeaptideError as error:
        notes.append(f"memory is not planned: {str(error).splitlines()[0]}")
        return None
    places = ("device", "host") if kind == "cpu" else ("device",)  # pages are not PyTorch's
    peak = max(one.bytes for one in planned.peaks(*places).values())
    return MemoryPeaks(most, peak)
