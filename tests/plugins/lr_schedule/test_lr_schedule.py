"""The rate in runs: equal to a plain loop of torch, with jumps, accumulation and several groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from scheduled import (
    STEPS,
    assert_same,
    batches,
    in_a_plain_loop,
    in_a_run,
    loss_fn,
    rates_of,
    settings,
    two_groups,
)
from support import CYCLE, DEVICE, tiny_trainer
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from neaptide import HybridTrainer
from neaptide_plugins.lr_schedule import SPEC
from neaptide_plugins.lr_schedule.config import LrScheduleConfig
from neaptide_plugins.lr_schedule.lengths import curve_of
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

TORCH: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 5, "gamma": 0.5},
    "MultiStepLR": {"milestones": [3, 9]},
    "ConstantLR": {"factor": 0.25, "total_iters": 7},
    "LinearLR": {"total_iters": 11},
    "ExponentialLR": {"gamma": 0.9},
    "PolynomialLR": {"total_iters": STEPS, "power": 2.0},
    "CosineAnnealingLR": {"T_max": STEPS, "eta_min": 1e-4},
    "CosineAnnealingWarmRestarts": {"T_0": 4, "T_mult": 2},
    "CyclicLR": {"base_lr": 1e-4, "max_lr": 1e-2, "step_size_up": 3},
    "OneCycleLR": {"max_lr": 0.02, "total_steps": STEPS, "three_phase": True},
}


@pytest.mark.parametrize(
    "given", [{"name": "wsd", "warmup": 3}, {"warmup": 0.2, "floor": 0.1}, {"name": "OneCycleLR"}]
)
def test_the_contract_is_kept(given: dict[str, Any]) -> None:
    check_plugin(SPEC, given)


@pytest.mark.parametrize("name", sorted(TORCH))
def test_a_scheduler_of_torch_is_that_of_a_plain_loop_bit_for_bit(name: str) -> None:
    cls = getattr(lr_scheduler, name)
    plain = in_a_plain_loop(lambda optimizer: cls(optimizer, **TORCH[name]))
    assert_same(plain, in_a_run({"name": name, "options": TORCH[name]}))


def with_tensors(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"], device=DEVICE)
    return optimizer


@pytest.mark.parametrize("rate", ["number", "tensor"])
@pytest.mark.parametrize(
    "name", ["cosine", "linear", "wsd", "constant", "StepLR", "CosineAnnealingLR", "LinearLR"]
)
def test_numbers_and_tensors_are_those_of_a_plain_loop_bit_for_bit(name: str, rate: str) -> None:
    given: dict[str, Any] = {"name": name}
    if name in TORCH:
        given["options"] = TORCH[name]
    else:
        given |= {"warmup": 0.25, **({} if name == "constant" else {"floor": 0.05})}
    options = {"foreach": False, "capturable": DEVICE.type != "cpu"} if rate == "tensor" else {}
    model, optimizer = two_groups(**options)
    other, beside = two_groups(**options)
    if rate == "tensor":
        optimizer, beside = with_tensors(optimizer), with_tensors(beside)
    objects = [group["lr"] for group in beside.param_groups]
    scheduler: Any = (
        getattr(lr_scheduler, name)(optimizer, **TORCH[name])
        if name in TORCH
        else lr_scheduler.LambdaLR(optimizer, curve_of(LrScheduleConfig(**given), STEPS).factor)
    )
    with HybridTrainer(other, beside, loss_fn=loss_fn, config=settings(**given)) as trainer:
        for batch in batches():
            loss_fn(model, batch).backward()
            expected = [float(group["lr"]) for group in optimizer.param_groups]
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            trainer.step(batch)
            assert expected == [float(group["lr"]) for group in beside.param_groups]
    if rate == "tensor":
        now = [group["lr"] for group in beside.param_groups]
        assert all(one is other for one, other in zip(now, objects, strict=True))
    one, two = model.state_dict(), other.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_peak_and_the_length_of_a_cycle_come_from_the_run() -> None:
    peaks = [0.01, 0.003]
    plain = in_a_plain_loop(
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, peaks, total_steps=STEPS)
    )
    assert_same(plain, in_a_run({"name": "OneCycleLR"}))


@pytest.mark.parametrize("counts", [True, False])
def test_an_accepted_jump_counts_as_the_updates_it_replaces(
    counts: bool,  # noqa: FBT001 - a case
    tmp_path: Path,
) -> None:
    given = {"name": "linear", "count_jumps": counts}
    config = {"phases": CYCLE, "train": {"steps": 100}, "plugins": {"lr-schedule": given}}

    def run(first: int, last: int, load: Path | None = None) -> tuple[list[float], int]:
        trainer, some = tiny_trainer(config, [STEADY_PREDICTOR, SPEC])
        seen = []
        with trainer:
            if load:
                trainer.load(load)
            for batch in some[first:last]:
                made = trainer.state.step
                trainer.step(batch)
                assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(
                    0.01 * (1 - (made + counts * trainer.state.predicted) / 100)
                )
                seen.append(trainer.optimizer.param_groups[0]["lr"])
            trainer.save(tmp_path / f"{last}")
            return seen, trainer.state.predicted

    whole, predicted = run(0, 20)
    assert predicted > 0
    assert whole[9:] == (run(0, 9), run(9, 20, tmp_path / "9"))[1][0]


def test_steps_that_only_accumulate_keep_the_rate() -> None:
    accumulating = {"gradient-accumulation": {"steps": 2, "across_steps": True}}
    config = settings(name="linear")
    config["plugins"].update(accumulating)
    with HybridTrainer(*two_groups(), loss_fn=loss_fn, config=config) as trainer:
        seen = [one for one, _ in rates_of(trainer, batches())]
    expected = [0.01 * (1 - update / STEPS) for update in range(12) for _ in range(2)]
    assert expected == seen


def test_the_rate_is_in_the_metrics(tmp_path: Path) -> None:
    config = {**settings(name="linear"), "run": {"dir": str(tmp_path / "run"), "log_every": 1}}
    with HybridTrainer(*two_groups(), loss_fn=loss_fn, config=config) as trainer:
        trainer.fit(batches())
    lines = [json.loads(one) for one in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [0.01 * (1 - update / STEPS) for update in range(STEPS)] == [one["lr"] for one in lines]


def test_a_users_hooks_on_steps_see_the_steps_of_the_run_only() -> None:
    seen = []
    hook = register_optimizer_step_post_hook(
        lambda optimizer, _args, _kwargs: seen.append(type(optimizer).__name__)
    )
    try:
        in_a_run({"name": "OneCycleLR"})
    finally:
        hook.remove()
    assert STEPS * ["AdamW"] == seen


def test_without_a_schedule_the_rate_is_the_users() -> None:
    trainer, some = tiny_trainer()
    with trainer:
        trainer.optimizer.param_groups[0]["lr"] = 0.125
        trainer.step(some[0])
        assert 0.125 == trainer.optimizer.param_groups[0]["lr"]
        assert "initial_lr" not in trainer.optimizer.param_groups[0]


def test_a_run_moves_the_rate_by_updates() -> None:
    config = {"plugins": {"lr-schedule": {"name": "linear"}}, "train": {"steps": 4}}
    trainer, some = tiny_trainer(config)
    with trainer:
        assert [[1e-2], [0.75e-2], [0.5e-2], [0.25e-2]] == rates_of(trainer, some[:4])
