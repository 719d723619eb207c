"""A resumed run has the rates of a run without a break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from scheduled import STEPS, batches, in_a_run, loss_fn, rates_of, settings, two_groups

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from pathlib import Path

RESUMED: list[dict[str, Any]] = [
    {"name": "wsd", "warmup": 3, "decay": 0.5, "floor": 0.01},
    {"name": "OneCycleLR"},
    {"name": "CosineAnnealingWarmRestarts", "options": {"T_0": 5}},
]


@pytest.mark.parametrize("given", RESUMED)
def test_a_resumed_run_has_the_same_rates_and_weights(
    given: dict[str, Any], tmp_path: Path
) -> None:
    whole = in_a_run(given)
    model, optimizer = two_groups()
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=settings(**given)) as trainer:
        rates_of(trainer, batches()[:10])
        trainer.save(tmp_path / "saved")
    model, optimizer = two_groups(seed=5)
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=settings(**given)) as trainer:
        trainer.load(tmp_path / "saved")
        left = rates_of(trainer, batches()[10:])
    assert [[rate for rate, _ in one] for one in whole[0][10:]] == left
    assert all(torch.equal(whole[1][name], one) for name, one in model.state_dict().items())


@pytest.mark.parametrize("given", [{"warmup": 0.25}, {"name": "CosineAnnealingLR"}])
def test_after_a_resume_the_new_length_counts(given: dict[str, Any], tmp_path: Path) -> None:
    def trainer_of(steps: int) -> HybridTrainer:
        config = {**settings(**given), "train": {"steps": steps}}
        return HybridTrainer(*two_groups(), loss_fn=loss_fn, config=config)

    with trainer_of(12) as trainer:
        rates_of(trainer, batches()[:8])
        trainer.save(tmp_path / "saved")
    with trainer_of(STEPS) as trainer:
        trainer.load(tmp_path / "saved", allow_changes=True)
        left = rates_of(trainer, batches()[8:])
    with trainer_of(STEPS) as trainer:
        assert left == rates_of(trainer, batches())[8:]


def test_a_run_that_gets_a_schedule_at_its_resume_goes_on_in_the_middle(tmp_path: Path) -> None:
    with HybridTrainer(*two_groups(), loss_fn=loss_fn) as trainer:
        rates_of(trainer, batches()[:8])
        trainer.save(tmp_path / "saved")
    config = settings(name="linear")
    with HybridTrainer(*two_groups(), loss_fn=loss_fn, config=config) as trainer:
        trainer.load(tmp_path / "saved", allow_changes=True)
        left = rates_of(trainer, batches()[8:])
    assert [[rate for rate, _ in one] for one in in_a_run({"name": "linear"})[0][8:]] == left


def test_a_checkpoint_of_a_run_with_the_old_section_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """The core set `initial_lr` and the rate of each group, and saved nothing else."""
    model, optimizer = two_groups()
    with HybridTrainer(model, optimizer, loss_fn=loss_fn) as trainer:
        for update, batch in enumerate(batches()[:10]):
            factor = (update + 1) / 4 if update < 3 else 1.0 - (update - 3) / (STEPS - 3)
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
    given = {"name": "linear", "warmup": 3, "count_jumps": False}
    model, optimizer = two_groups(seed=5)
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=settings(**given)) as trainer:
        trainer.load(tmp_path / "saved", allow_changes=True)
        left = rates_of(trainer, batches()[10:])
    rates, weights = in_a_run(given)
    assert [[rate for rate, _ in one] for one in rates[10:]] == left
    assert all(torch.equal(weights[name], one) for name, one in model.state_dict().items())
