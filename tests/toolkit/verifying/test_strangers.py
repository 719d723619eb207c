"""Faults of many kinds that strangers planted: verify names the plugin, the step and the tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import planted_strangers as planted
import pytest
from planted_faults import predictor
from support import some
from verified import CONFIG

from neaptide_toolkit.verifying import verify

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: list[tuple[Callable[[], Any], str, int, str]] = [
    (planted.scales_one_gradient, "training", 1, "gradients/blocks.1.norm.weight"),
    (planted.freezes, "training", 0, "trained/blocks.0.up.bias"),
    (planted.rounds_a_jump, "training", 4, "jump/blocks.0.norm.weight"),
    (planted.decays_all, "training", 0, "optimizer/group 0/weight_decay"),
    (planted.steps_the_schedule, "training", 1, "optimizer/group 0/lr"),
    (planted.restores_old_random_state, "training", 3, "random/torch"),
    (planted.clips_before_unscaling, "training", 1, "gradients/"),
    (planted.recomputes_in_eval, "training", 0, "the run"),
    (planted.widens_a_buffer, "training", 0, "buffers/blocks.2.calls"),
    (planted.drops_the_last_part, "tolerance", 1, "loss"),
    (planted.keeps_old_gradients, "training", 3, "gradients/head.bias"),
    (planted.tells_another_loss, "training", 1, "loss"),
    (planted.skips_an_update, "training", 3, "gradients/"),
    (planted.saves_with_a_trace, "save", 2, "weights/"),
    (planted.counts_otherwise, "training", 1, "loss"),
    (planted.leaves_eval_mode, "evaluation", 2, "mode/blocks.1.drop"),
]


@pytest.mark.parametrize(("fault", "check", "step", "tensor"), some(CASES, of=8))
def test_a_fault_of_a_stranger_is_named(
    fault: Callable[[], Any], check: str, step: int, tensor: str
) -> None:
    plugin = fault()
    beside = [predictor()] if fault is planted.rounds_a_jump else []
    config = {**CONFIG, "plugins": {"activation-checkpointing": {}}}
    found = verify(config, steps=4, plugins=[*beside, plugin], memory=False).findings
    assert {(plugin.name,)} == {one.plugins for one in found}
    assert check == found[0].check
    assert found[0].difference is not None
    assert step == found[0].difference.step, found[0].says
    assert found[0].difference.parting.name.startswith(tensor), found[0].says
