"""Micro-batches draw other masks: that is no alarm, and hides no fault where it can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import planted_faults as planted
import pytest
from verified import CONFIG

from neaptide_toolkit.verifying import verify

if TYPE_CHECKING:
    from neaptide_toolkit.verifying import Verification


def verification(model: str, *plugins: Any, **settings: Any) -> Verification:
    config = {**CONFIG, "model": {"name": f"verified:{model}"}, "plugins": settings}
    return verify(config, steps=2, plugins=plugins, memory=False)


SPLIT: dict[str, Any] = {"gradient-accumulation": {"steps": 2}}


def test_dropout_by_functions_is_no_alarm() -> None:
    found = verification("functional_dropout", **SPLIT)
    assert found.right, str(found)
    assert () == found.notes


@pytest.mark.slow
def test_a_fault_beside_dropout_by_functions_is_named() -> None:
    (found,) = verification("functional_dropout", planted.weighs()).findings
    assert ("tolerance", ("weighs",)) == (found.check, found.plugins)


def test_noise_of_the_model_itself_is_not_compared() -> None:
    found = verification("own_noise", **SPLIT)
    assert found.right, str(found)
    assert any("draws random numbers" in one for one in found.notes)
    assert not any("tolerance" in one for one in found.checks)
