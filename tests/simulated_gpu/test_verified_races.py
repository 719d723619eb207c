"""`neaptide verify` names who uses a slot before its copy is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import planted_strangers as planted
import pytest
import simulated_gpu
from verified import CONFIG

from neaptide_plugins.layer_streaming.weights.residency import Residency
from neaptide_toolkit.verifying import verify

if TYPE_CHECKING:
    from neaptide_toolkit.verifying import VerifyFinding

STREAMED: dict[str, Any] = {"layer-streaming": {"resident": 0}, "ema": {}}


def race(*plugins: Any) -> VerifyFinding:
    config = {**CONFIG, "plugins": STREAMED}
    with pytest.raises(simulated_gpu.RaceError), simulated_gpu.detect_races():  # of other runs, too
        found = verify(config, steps=2, plugins=plugins, memory=False)
    assert ["races"] == [one.check for one in found.findings], str(found)
    return found.findings[0]


def test_a_slot_that_a_stranger_uses_before_its_copy_is_done() -> None:
    found = race(planted.uses_a_slot_early())
    assert {"layer-streaming", "early"} == set(found.plugins)
    assert "written by copy to device" in found.says


def test_a_streaming_that_does_not_wait_for_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_in = Residency._copy_in

    def unordered(self: Any, block: Any, slot: Any) -> None:
        copy_in(self, block, slot)
        block.arrival = planted.DONE

    monkeypatch.setattr(Residency, "_copy_in", unordered)
    assert ("layer-streaming",) == race().plugins


def test_a_streaming_that_waits_has_no_race() -> None:
    found = verify({**CONFIG, "plugins": STREAMED}, steps=2, memory=False)
    assert found.right, str(found)
    assert any("race" in one for one in found.checks)
