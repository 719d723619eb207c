"""Verify finds nothing where nothing is wrong: many architectures, several stacks of plugins."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from sweep_nets import net_cases
from verified import CONFIG

from neaptide import HybridTrainer, ModelError, NeaptideError
from neaptide.run.feed import moved
from neaptide_toolkit.verifying import verify

if TYPE_CHECKING:
    from sweeps import Case

    from neaptide import PluginSpec, RunConfig

STACKS: dict[str, dict[str, Any]] = {
    "checkpointing": {"activation-checkpointing": {}, "ema": {}, "divergence-monitor": {}},
    "streaming": {"layer-streaming": {}, "profiler": {}},
    "graph": {"layer-streaming": {"mode": "graph", "optimizer_on": "device"}, "ema": {}},
    "offload": {"optimizer-offload": {}, "predictor-momentum": {}},
}
ARCHITECTURES, PARTS = 60, 6
pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about some nets


def outcome(case: Case, stack: str) -> str:
    """Return `right`, `refused`, `untrainable` or what is wrong."""

    def make(config: RunConfig, specs: list[PluginSpec]) -> tuple[HybridTrainer, Any]:
        torch.manual_seed(0)
        model = case.model().to(DEVICE)
        optimizer = case.optimizer(model)
        batches = [moved(batch, DEVICE) for batch in case.batches()]
        trainer = HybridTrainer(
            model, optimizer, loss_fn=case.loss_fn, config=config, plugins=specs
        )
        return trainer, batches

    config = {"plugins": STACKS[stack], "train": {"max_skipped": 0}}
    try:
        found = verify(config, steps=3, make=make, memory=False)
    except ModelError as error:
        return "untrainable" if "nothing to compare" in str(error) else "refused"
    except NeaptideError:
        return "refused"
    return "right" if found.right else str(found)


@pytest.mark.parametrize("stack", STACKS)
def test_a_net_made_by_chance_is_right(stack: str) -> None:
    case = next(islice(net_cases(), 7, None))
    found = outcome(case, stack)
    assert found in ("right", "refused"), found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("stack", STACKS)
def test_sixty_architectures_are_right(stack: str, part: int) -> None:
    cases = [*islice(net_cases(), part, ARCHITECTURES, PARTS)]
    found = {case.name: outcome(case, stack) for case in cases}
    assert {} == {name: one for name, one in found.items() if "\n" in one}
    assert Counter(found.values())["right"] >= len(cases) // 2


@pytest.mark.parametrize("plugins", [{"gradient-accumulation": {"steps": 2}}, {}])
def test_a_tolerance_is_a_tolerance(plugins: dict[str, Any]) -> None:
    found = verify({**CONFIG, "plugins": plugins}, steps=3, memory=False)
    assert found.right, str(found)


def test_memory_is_measured_beside_its_plan() -> None:
    found = verify({**CONFIG, "plugins": {"activation-checkpointing": {}}}, steps=2)
    assert found.right, str(found)
    assert found.memory is not None, str(found)
    assert 0 < found.memory.planned
    assert not found.memory.is_more, str(found.memory)
