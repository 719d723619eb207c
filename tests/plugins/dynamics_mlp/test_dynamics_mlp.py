from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from corrected_forecasts import (
    bytes_in_ledger,
    require_no_change_alone,
    require_resumed_alike,
)
from support import tiny_trainer

from neaptide import ConfigError
from neaptide_plugins.dynamics_mlp import SPEC

if TYPE_CHECKING:
    from pathlib import Path


QUICK: dict[str, Any] = {
    "horizons": [2, 4], "every": 1, "around": 0, "least": 3, "hidden": 4, "rounds": 2,
}  # fmt: skip


@pytest.mark.parametrize("saved_after", [1, 20])
def test_a_resumed_run_forecasts_the_same(tmp_path: Path, saved_after: int) -> None:
    require_resumed_alike(SPEC, QUICK, tmp_path / "saved", saved_after)


def test_without_a_predictor_it_changes_no_bit() -> None:
    require_no_change_alone(SPEC, QUICK)


def test_what_it_holds_is_in_the_ledger() -> None:
    assert 1024 * 72 * 4 < bytes_in_ledger(SPEC) < 1_000_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizons": [50, 20]}, r"rising order.*plugins.dynamics-mlp"),
        ({"members": 1}, r"members.*plugins.dynamics-mlp"),
    ],
)
def test_bad_settings_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as told:
        tiny_trainer({"plugins": {SPEC.name: settings}})
    assert "\n" not in str(told.value)
