"""Verify finds planted faults, and names the plugin, the step, the module and the tensor."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import planted_faults as planted
import pytest
from support import DEVICE, plugin_with, stranger
from verified import CONFIG

from neaptide import Interrupted, hookimpl
from neaptide_toolkit.verifying import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide_toolkit.verifying import Verification, VerifyFinding

BESIDE: dict[str, Any] = {"activation-checkpointing": {}}


def verification(*plugins: Any, steps: int = 4, **config: Any) -> Verification:
    full = {**CONFIG, "plugins": BESIDE, **config}
    return verify(full, steps=steps, plugins=plugins, memory=False)


def only(found: Verification) -> VerifyFinding:
    assert 1 == len(found.findings), str(found)
    return found.findings[0]


@pytest.mark.parametrize(
    ("fault", "step", "tensor"),
    [
        (planted.scaled, 1, "gradients/head.bias"),
        (planted.loses_a_buffer, 2, "buffers/blocks.1.calls"),
        (planted.draws, 3, "random/"),
        (planted.draws_of_python, 1, "random/python"),
        (planted.rounds, 1, "weights/blocks.1.up.weight"),
        (planted.edits, 3, "batch/targets"),
        (planted.clips_twice, 1, "gradients/"),
        (planted.recomputes_otherwise, 1, "gradients/blocks.1.down.bias"),
        (planted.unties, 0, "tied/embedding.weight"),
        (planted.unties_while_running, 1, "gradients/"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_in_training_is_named(fault: Callable[[], Any], step: int, tensor: str) -> None:
    plugin = fault()
    found = only(verification(plugin))
    assert ("training", (plugin.name,)) == (found.check, found.plugins)
    assert found.difference is not None
    assert found.difference.step == step
    assert found.difference.parting.name.startswith(tensor), found.says


def test_it_says_by_how_much() -> None:
    train = {**CONFIG["train"], "clip_norm": None}
    found = only(verification(planted.scaled(), train=train))
    assert found.difference is not None
    assert 1e-3 == pytest.approx(found.difference.parting.gap, rel=1e-2)


def test_a_weight_of_micro_batches_is_beyond_the_tolerance() -> None:
    found = only(verification(planted.weighs()))
    assert ("tolerance", ("weighs",)) == (found.check, found.plugins)
    assert found.difference is not None
    assert 1 == found.difference.step


def test_a_weight_of_micro_batches_is_not_exact() -> None:
    found = only(verification(planted.weighs("exact", 0.0)))
    assert ("training", ("weighs",)) == (found.check, found.plugins)


def test_an_evaluation_leaves_no_trace() -> None:
    found = only(verification(planted.evaluates_with_a_trace()))
    assert ("evaluation", ("evaluates",)) == (found.check, found.plugins)
    assert found.difference is not None
    assert found.difference.parting.name.startswith("weights/")


def test_a_jump_that_is_not_taken_back() -> None:
    found = only(verification(planted.predictor(), planted.keeps_the_jump()))
    assert ("refused jump", ("keeps",)) == (found.check, found.plugins)


def test_what_a_plugin_does_not_save() -> None:
    found = only(verification(planted.forgets(), steps=6))
    assert ("resume", ("forgets",)) == (found.check, found.plugins)


ON_THE_HOST = pytest.mark.skipif(
    DEVICE.type != "cpu", reason="on a device, state is copied after load_state_dict"
)


@pytest.mark.parametrize(
    "optimizer", ["Forgetful", pytest.param("HalfForgetful", marks=ON_THE_HOST)]
)
def test_an_optimizer_that_does_not_restore_its_state(optimizer: str) -> None:
    found = only(verification(optimizer={"name": f"verified:{optimizer}"}))
    assert ("resume", ()) == (found.check, found.plugins)
    assert found.difference is not None
    assert found.difference.parting.name.startswith("optimizer/")


def test_a_state_of_the_model_that_is_not_saved() -> None:
    found = only(verification(model={"name": "verified:net_that_loses"}))
    assert ("resume", ()) == (found.check, found.plugins)


def test_an_observer_that_raises() -> None:
    found = only(verification(planted.raises()))
    assert ("error", ("raises",)) == (found.check, found.plugins)


def test_two_plugins_that_differ_only_together() -> None:
    found = only(verification(planted.one_of_two("left"), planted.one_of_two("right")))
    assert ("training", {"left", "right"}) == (found.check, set(found.plugins))


def test_two_guilty_plugins_are_both_named() -> None:
    found = verification(planted.rounds(), planted.draws()).findings
    assert [("training", ("rounds",)), ("training", ("draws",))] == [
        (one.check, one.plugins) for one in found
    ]


def test_a_signal_is_nobodys_fault() -> None:
    @hookimpl
    def after_step(self: Any, step: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        verification(stranger(plugin_with(after_step=after_step), "signals"))
