from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from corrected_forecasts import (
    bytes_in_ledger,
    require_no_change_alone,
    require_resumed_alike,
)
from support import CYCLE, tiny_trainer

from neaptide import ConfigError
from neaptide_kernels.registry import KERNELS, Provider
from neaptide_plugins.dynamics_rssm import SPEC
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path


QUICK: dict[str, Any] = {
    "horizons": [2, 4], "every": 1, "stride": 2, "around": 0, "least": 3, "members": 2,
    "rounds": 1, "batch": 2, "remembered": 24,
}  # fmt: skip


@pytest.mark.parametrize("saved_after", [1, 20])
def test_a_resumed_run_forecasts_the_same(tmp_path: Path, saved_after: int) -> None:
    require_resumed_alike(SPEC, QUICK, tmp_path / "saved", saved_after)


def test_without_a_predictor_it_changes_no_bit() -> None:
    require_no_change_alone(SPEC, QUICK)


def test_what_it_holds_is_in_the_ledger() -> None:
    assert 15_000_000 < bytes_in_ledger(SPEC) < 20_000_000


def test_rollouts_are_made_by_the_registrys_op() -> None:
    asked: list[tuple[int, ...]] = []

    def counted(*arguments: Any) -> Any:
        asked.append(tuple(arguments[2].shape))
        return KERNELS.ops["rssm_rollout"].spec.reference(*arguments)

    phases = {**CYCLE, "predict": {**CYCLE["predict"], "max_horizon": 4, "confidence": 1e-9}}
    whole = {"phases": phases, "plugins": {SPEC.name: {**QUICK, "members": 5}}}
    trainer, batches = tiny_trainer(whole, [SPEC, STEADY_PREDICTOR])
    provider = Provider(op="rssm_rollout", name="counted", run=counted, priority=99)
    KERNELS.add(provider)
    try:
        with trainer:
            for batch in batches:
                trainer.step(batch)
    finally:
        KERNELS.remove(provider)
    assert any(shape[0] == 5 and shape[2:] == (2, 768) for shape in asked)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizons": [50, 20]}, r"rising order.*plugins.dynamics-rssm"),
        ({"members": 1}, r"members.*plugins.dynamics-rssm"),
        ({"remembered": 10}, r"at least .* steps of .* updates.*got 10.*plugins.dynamics-rssm"),
    ],
)
def test_bad_settings_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as told:
        tiny_trainer({"plugins": {SPEC.name: settings}})
    assert "\n" not in str(told.value)
