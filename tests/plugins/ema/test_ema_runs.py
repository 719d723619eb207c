"""The average in runs that skip, resume and evaluate; training never notices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, same_tensors, tensors_of, tiny_trainer

from neaptide_plugins.ema import SPEC
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path


def settings(**given: Any) -> dict[str, Any]:
    return {"phases": CYCLE, "plugins": {"ema": {"decay": 0.9, **given}}}


def averages_of(trainer: Any) -> dict[str, torch.Tensor]:
    state = trainer.hooks.plugins["ema"].state_dict()["averages"]
    return {name: average.clone() for name, average in state.items()}


@pytest.mark.parametrize("given", [{"tier": "host"}, {"warmup": False, "decay": 0.5}])
def test_it_keeps_the_contract(given: dict[str, Any]) -> None:
    check_plugin(SPEC, given)


def test_training_and_its_evaluations_leave_every_weight_alone() -> None:
    def run(config: dict[str, Any], *plugins: Any) -> dict[str, torch.Tensor]:
        trainer, batches = tiny_trainer(config, [STEADY_PREDICTOR, *plugins])
        with trainer:
            for number, batch in enumerate(batches[:14]):
                trainer.step(batch)
                if number % 3 == 0:
                    before = tensors_of(trainer.model)
                    trainer.evaluate(batches[-2:])
                    assert same_tensors(before, tensors_of(trainer.model))
            return tensors_of(trainer.model)

    assert same_tensors(run({"phases": CYCLE}), run(settings(), SPEC))


@pytest.mark.parametrize("tier", ["device", "host"])
def test_only_trainable_weights_are_averaged_in_float32(tier: str) -> None:
    trainer, batches = tiny_trainer(settings(tier=tier), [SPEC, STEADY_PREDICTOR])
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    with trainer:
        trainer.step(batches[0])
        averages = averages_of(trainer)
        stated = trainer.estimate_memory("full").total(owner="ema", tier=tier, moment="update")
    assert trained == averages.keys()
    assert {torch.float32} == {average.dtype for average in averages.values()}
    assert 4 * sum(average.numel() for average in averages.values()) == stated


def test_warmup_begins_with_the_weights_and_slows_down() -> None:
    trainer, batches = tiny_trainer(settings(decay=0.999), [SPEC, STEADY_PREDICTOR])
    name = "head.weight"
    with trainer:
        average = trainer.model.get_parameter(name).detach().clone()
        for update in (1, 2, 3, 4):
            trainer.step(batches[update])
            share = (1 + update) / (10 + update)
            average = share * average + (1 - share) * trainer.model.get_parameter(name).detach()
        torch.testing.assert_close(averages_of(trainer)[name], average)


def test_a_skipped_update_does_not_count() -> None:
    trainer, batches = tiny_trainer(settings(), [SPEC, STEADY_PREDICTOR])
    poison = {**batches[0], "x": torch.full_like(batches[0]["x"], math.nan)}
    with trainer:
        trainer.step(batches[0])
        before = averages_of(trainer)
        assert not trainer.step(poison).updated
        assert same_tensors(before, averages_of(trainer))
        assert 1 == trainer.hooks.plugins["ema"].state_dict()["updates"]


def test_a_resumed_run_has_the_same_average(tmp_path: Path) -> None:
    def run(first: int, last: int, load: Path | None = None, save: Path | None = None) -> Any:
        trainer, batches = tiny_trainer(settings(), [SPEC, STEADY_PREDICTOR])
        with trainer:
            if load is not None:
                trainer.load(load)
            for batch in batches[first:last]:
                trainer.step(batch)
            if save is not None:
                trainer.save(save)
            return averages_of(trainer)

    saved = tmp_path / "saved"
    whole = run(0, 15)
    run(0, 9, save=saved)
    assert same_tensors(whole, run(9, 15, load=saved))


def test_where_the_average_lies_changes_no_bit() -> None:
    results = []
    for tier in ("device", "host"):
        trainer, batches = tiny_trainer(settings(tier=tier), [SPEC, STEADY_PREDICTOR])
        with trainer:
            for batch in batches[:9]:
                trainer.step(batch)
            results.append((trainer.evaluate(batches[-2:]), averages_of(trainer)))
    (one_loss, one), (other_loss, other) = results
    assert one_loss == other_loss
    assert same_tensors(one, other)


def test_a_plain_evaluation_is_of_the_weights_as_they_are() -> None:
    def losses(config: dict[str, Any], *plugins: Any) -> tuple[float, float]:
        trainer, batches = tiny_trainer(config, [STEADY_PREDICTOR, *plugins])
        with trainer:
            for batch in batches[:9]:
                trainer.step(batch)
            held = batches[-2:]
            return trainer.evaluate(held), trainer.evaluate(held, plain=True)

    alone, same = losses({"phases": CYCLE})
    averaged, plain = losses(settings(), SPEC)
    assert alone == same == plain
    assert averaged != plain


def test_a_weight_thawed_within_the_run_joins_and_resumes(tmp_path: Path) -> None:
    def made() -> Any:
        trainer, batches = tiny_trainer(settings(), [STEADY_PREDICTOR])
        trainer.model.first.bias.requires_grad_(False)
        return trainer, batches

    trainer, batches = made()
    with trainer:
        trainer.step(batches[0])
        trainer.model.first.bias.requires_grad_(True)
        assert math.isfinite(trainer.evaluate(batches[:1]))  # before its first update
        for batch in batches[1:9]:
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
        for batch in batches[9:14]:
            trainer.step(batch)
        whole, averages = trainer.digest(), averages_of(trainer)
    assert "first.bias" in averages
    trainer, _ = made()
    with trainer:
        trainer.model.first.bias.requires_grad_(True)
        trainer.load(tmp_path / "saved")
        for batch in batches[9:14]:
            trainer.step(batch)
        assert whole == trainer.digest()
        assert same_tensors(averages, averages_of(trainer))
