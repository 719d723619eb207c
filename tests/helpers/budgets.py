"""Random small runs, the bytes that each really takes, and budgets of bytes around them."""

from __future__ import annotations

import gc
import json
import random
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_toolkit.offload import mapped_slabs, slab_bytes
from neaptide_toolkit.testing import kinds
from neaptide_toolkit.testing.allocations import counted
from neaptide_verbs.plan import planning
from neaptide_verbs.plan.machine import CONTEXT, PlannedMachine

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from neaptide.config import RunConfig
    from neaptide_verbs.plan.value import Plan

GIB = 2**30
STEPS = 3
"""Updates of a run, as many as a plan makes."""
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {"name": "adamw"},
    {"name": "sgd"},
    {"name": "sgd", "options": {"momentum": 0.9}},
)
STREAMED: tuple[dict[str, Any], ...] = (
    {"optimizer_on": "cpu"},
    {"optimizer_on": "cpu", "mode": "graph"},
    {"optimizer_on": "device"},
    {"optimizer_on": "device", "mode": "graph"},
    {"update": "in_backward"},
)
WITHOUT_HALF = {"experts"}
"""Models that cannot compute in 16 bits: `index_add_` wants one dtype."""


@attrs.frozen
class BudgetCase:
    """A run, and its budget as a part of what it takes."""

    settings: dict[str, Any]
    share: float

    @property
    def config(self) -> RunConfig:
        """Return the configuration."""
        return configured(self.settings, ())[0]

    @property
    def text(self) -> str:
        """Return the configuration as JSON."""
        return json.dumps({"version": 1, **self.settings})

    @property
    def is_of_onednn(self) -> bool:
        """Return whether kernels of oneDNN take memory inside, on a CPU."""
        name = self.settings["model"]["name"].split(":")[1]
        return self.is_half or name in ("convolutions", "recurrent")

    @property
    def is_half(self) -> bool:
        """Return whether the run computes in 16 bits."""
        return "mixed-precision" in self.settings["plugins"]


@attrs.frozen
class Judged:
    """What a plan says of a budget, and what the run took. All in bytes."""

    budget: int
    planned: int
    measured: int
    fits: bool


def drawn(seed: int, device: str, names: Sequence[str], widths: Sequence[int]) -> BudgetCase:
    """Return a run of one of the models `names`, with one of the `widths`. All kinds can run."""
    draw = random.Random(seed)
    name, width, layers = draw.choice(names), draw.choice(widths), draw.randint(2, 6)
    options = {"width": width, "length": draw.choice([1, 2, 8, 16, 33, 64])}
    data = "sequences"
    if name == "convolutions":
        data, options = "images", {"width": min(width, 64), "side": draw.choice([4, 8, 16, 24])}
    plugins: dict[str, Any] = {}
    way = draw.choice(["plain", "plain", "computed again", *["streamed"] * 3])
    if name != "recurrent" and way == "computed again":
        plugins["activation-checkpointing"] = {}
    elif name != "recurrent" and way == "streamed":
        plugins["layer-streaming"] = {"resident": draw.choice([0, 1]), **draw.choice(STREAMED)}
    in_backward = "update" in plugins.get("layer-streaming", {})
    if draw.random() < 0.25 and not in_backward:
        plugins["gradient-accumulation"] = {"steps": 2}
    if draw.random() < 0.25 and name not in WITHOUT_HALF:
        plugins["mixed-precision"] = {}
    settings = {
        "model": {
            "name": f"{kinds.__name__}:{name}",
            "options": {"layers": layers, "width": options["width"]},
        },
        "data": {"name": f"{kinds.__name__}:{data}", "options": options},
        "optimizer": draw.choice(OPTIMIZERS),
        "plugins": plugins,
        "train": {"device": device, "batch_size": kinds.ROWS},
    }
    return BudgetCase(settings, draw.uniform(0.5, 1.5))


def taken(case: BudgetCase) -> int:
    """Return the bytes that a run takes: of tensors in RAM or, on a GPU, of its allocator.

    On a GPU, that is what the allocator takes from the device. The data are not counted.
    """
    given = case.settings["data"]
    data = getattr(kinds, given["name"].split(":")[1])(**given["options"])
    on_cpu, before = case.config.train.device == "cpu", mapped_slabs()
    gc.collect()  # what earlier tests made
    if not on_cpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        kept = torch.cuda.memory_reserved()
    with counted() as found, HybridTrainer.from_config(case.config) as trainer:
        found.mark("steps")
        for batch in islice(data.train, STEPS):
            trainer.step(batch, phase="full")
        trainer.evaluate(data.validation)
        slabs = slab_bytes(before)
    if not on_cpu:
        return torch.cuda.max_memory_reserved() - kept
    # While a model is built, weights leave the allocator for slabs that are not all there yet.
    return max(found.peak(), found.peaks_after_marks()["steps"] + slabs)


def of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans count no bytes of this process: they change from call to call."""
    original = planning.dry_run
    monkeypatch.setattr(
        planning, "dry_run", lambda *given: attrs.evolve(original(*given), process=0)
    )


def judged(case: BudgetCase) -> Judged:
    """Run a case, and ask its plan whether it fits the budget. `of_tensors` comes before."""
    measured = taken(case)
    budget = round(measured * case.share)
    on_cpu = case.config.train.device == "cpu"
    machine = PlannedMachine(
        name="a budget",
        device=None if on_cpu else CONTEXT + budget,
        host=budget if on_cpu else None,
        rates=None,
    )
    made: Plan = planning.plan(case.config, machine)
    planned = made.peak_bytes["RAM"] if on_cpu else made.peak_bytes["device"] - CONTEXT
    return Judged(budget, planned, measured, made.fits)
