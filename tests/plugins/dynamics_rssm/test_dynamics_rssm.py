from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support import CYCLE, same_tensors, tensors_of, tiny_trainer

from neaptide import ConfigError
from neaptide_kernels.registry import KERNELS, Provider
from neaptide_plugins.dynamics_rssm import SPEC
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

    import torch

QUICK: dict[str, Any] = {
    "horizons": [2, 4], "every": 1, "stride": 2, "around": 0, "least": 3, "members": 2,
    "rounds": 1, "batch": 2, "remembered": 24,
}  # fmt: skip


def trainer_of() -> Any:
    phases = {**CYCLE, "predict": {**CYCLE["predict"], "max_horizon": 4, "confidence": 1e-9}}
    whole = {"phases": phases, "plugins": {SPEC.name: QUICK}}
    return tiny_trainer(whole, [SPEC, STEADY_PREDICTOR])


@pytest.mark.parametrize("saved_after", [1, 20])
def test_a_resumed_run_forecasts_the_same(tmp_path: Path, saved_after: int) -> None:
    trainer, batches = trainer_of()
    with trainer:
        for batch in batches[:saved_after]:
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
        rest = [trainer.step(batch) for batch in batches[saved_after:]]
        whole = trainer.digest()
    trainer, _ = trainer_of()
    with trainer:
        trainer.load(tmp_path / "saved")
        again = [trainer.step(batch) for batch in batches[saved_after:]]
        assert whole == trainer.digest()
    confidences = [each.confidence for each in rest]
    assert any(each is not None for each in confidences)
    assert confidences == [each.confidence for each in again]


def test_without_a_predictor_it_changes_no_bit() -> None:
    def weights(plugins: dict[str, Any]) -> dict[str, torch.Tensor]:
        trainer, batches = tiny_trainer({"plugins": plugins})
        with trainer:
            for batch in batches:
                trainer.step(batch)
            return tensors_of(trainer.model)

    assert same_tensors(weights({}), weights({SPEC.name: QUICK}))


def test_what_it_holds_is_in_the_ledger() -> None:
    trainer, _ = tiny_trainer({"plugins": {SPEC.name: {}}})
    with trainer:
        entries = trainer.estimate_memory("full").entries
        (held,) = (entry for entry in entries if entry.owner == SPEC.name)
        forecaster = trainer.hooks.plugins[SPEC.name]._forecaster
        assert ("host", forecaster.bytes) == (held.tier, held.bytes)
    assert 15_000_000 < held.bytes < 20_000_000


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
