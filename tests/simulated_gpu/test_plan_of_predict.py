"""A dry run for a GPU predicts the memory that Predict takes of a simulated one."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neaptide import HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run.running import dry_run
from neaptide_toolkit.testing import kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 512
STACKS: dict[str, dict[str, Any]] = {
    "samples in RAM": {},
    "samples on the device": {"predictor-momentum": {"tier": "device"}},
    "samples on the device in int8": {"predictor-momentum": {"tier": "device", "state": "int8"}},
    "optimizer in RAM": {"optimizer-offload": {}},
    "int8 weights, optimizer in RAM": {"optimizer-offload": {}, "int8": {}},
}


def predicting(stack: str) -> Any:
    options = {"width": WIDTH}
    short = {"samples": 2, "sample_every": 1}
    plugins = STACKS[stack]
    whole = {
        "model": {"name": f"{kinds.__name__}:deep", "options": options},
        "data": {"name": f"{kinds.__name__}:sequences", "options": options},
        "plugins": {**plugins, "predictor-momentum": short | plugins.get("predictor-momentum", {})},
        "train": {"device": "cuda"},
    }
    return configured(whole, ())[0]


def taken_in_predict(config: Any) -> int:
    """Return the peak on the device during a jump, with what plugins do around it."""
    gc.collect()
    torch.cuda.empty_cache()
    held, peaks = torch.cuda.memory_allocated(), []

    @contextmanager
    def opened(name: str, _category: str) -> Iterator[None]:
        if name == "around_predict":
            torch.cuda.reset_peak_memory_stats()
        yield
        if name == "around_predict":
            peaks.append(torch.cuda.max_memory_allocated() - held)

    with HybridTrainer.from_config(config) as trainer:
        trainer.run.timeline.listen(opened)
        for number, batch in enumerate(islice(kinds.sequences(width=WIDTH).train, 12)):
            result = trainer.step(batch, phase="full" if number < 3 else "predict")
            if result.jump is not None:
                return max(peaks)
    pytest.fail("no jump was tried")


@pytest.mark.parametrize("stack", STACKS)
def test_the_memory_of_predict_is_that_of_the_run(stack: str) -> None:
    config = predicting(stack)
    peak = taken_in_predict(config)
    done = dry_run(config, (), "cuda")
    found = [
        one.bytes for during, one in done.allocations.peaks("device").items() if "predict" in during
    ]
    assert done.jumped
    assert max(found) == pytest.approx(peak, rel=0.08)
