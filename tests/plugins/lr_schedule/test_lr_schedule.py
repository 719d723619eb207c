"""The rate in runs: equal to a plain loop of torch, with jumps, resumes and several groups."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, DEVICE, tiny_trainer
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from neaptide import ConfigError, HybridTrainer
from neaptide_plugins.lr_schedule import SPEC
from neaptide_plugins.lr_schedule.config import LrScheduleConfig
from neaptide_plugins.lr_schedule.plugin import curve_of
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 24
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


def settings(**given: Any) -> dict[str, Any]:
    return {"train": {"steps": STEPS}, "plugins": {"lr-schedule": given}}


def two_groups(seed: int = 0, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(DEVICE)
    groups = [
        {"params": model[0].parameters()},
        {"params": model[2].parameters(), "lr": 0.003, "weight_decay": 0.0},
    ]
    return model, torch.optim.AdamW(groups, lr=0.01, **options)


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 4, generator=generator).to(DEVICE) for _ in range(STEPS)]


def in_a_plain_loop(make: Any, **options: Any) -> tuple[list[Any], dict[str, torch.Tensor]]:
    model, optimizer = two_groups(**options)
    scheduler = make(optimizer)
    seen = []
    for batch in batches():
        loss_fn(model, batch).backward()
        seen.append([(float(group["lr"]), group["betas"]) for group in optimizer.param_groups])
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return seen, model.state_dict()


def in_a_run(given: dict[str, Any], **options: Any) -> tuple[list[Any], dict[str, torch.Tensor]]:
    model, optimizer = two_groups(**options)
    seen = []
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=settings(**given)) as trainer:
        for batch in batches():
            trainer.step(batch)
            seen.append([(float(group["lr"]), group["betas"]) for group in optimizer.param_groups])
    return seen, model.state_dict()


def assert_same(one: Any, other: Any) -> None:
    assert one[0] == other[0]
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])


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


def rates_of(trainer: HybridTrainer, some: list[Any]) -> list[list[float]]:
    seen = []
    for batch in some:
        trainer.step(batch)
        seen.append([float(group["lr"]) for group in trainer.optimizer.param_groups])
    return seen


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


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"name": "cosinus"}, "'name' must be constant, linear, cosine, wsd, or a class of"),
        ({"name": "StepsLR"}, "did you mean 'StepLR'"),
        ({"name": "ReduceLROnPlateau"}, "needs a metric"),
        ({"name": "LambdaLR"}, "needs a function"),
        ({"name": "SequentialLR"}, "needs schedulers"),
        ({"name": "StepLR"}, "step_size"),
        ({"name": "StepLR", "options": {"step": 3}}, "no option 'step'"),
        ({"name": "StepLR", "options": {"last_epoch": 3}}, "no option 'last_epoch'"),
        ({"name": "StepLR", "options": {"step_size": "3"}}, "refuses its options"),
        ({"name": "OneCycleLR", "options": {"total_steps": 5}}, "ends after 5 updates"),
        ({"name": "StepLR", "warmup": 3}, "'warmup' is a setting of"),
        ({"name": "linear", "decay": 0.2}, "'decay' is a setting of wsd"),
        ({"name": "constant", "floor": 0.2}, "'floor' is a setting of"),
        ({"options": {"gamma": 0.2}}, "'options' is a setting of classes of torch"),
        ({"warmup": 1.5}, "whole number of updates"),
        ({"warmup": 25}, "do not fit into train.steps = 24"),
        ({"name": "wsd", "warmup": 10, "decay": 0.9}, "a decay of 22 do not fit"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(given: dict[str, Any], wrong: str) -> None:
    model, optimizer = two_groups()
    before = copy.deepcopy(optimizer.state_dict()["param_groups"][0]["lr"])
    with pytest.raises(ConfigError) as caught:
        HybridTrainer(model, optimizer, loss_fn=loss_fn, config=settings(**given))
    (line,) = str(caught.value).splitlines()
    assert wrong in line
    assert "plugins.lr-schedule" in line
    assert before == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("section", [{"name": "cosine"}, {"warmup_steps": 5}])
def test_two_schedules_are_refused(section: dict[str, Any]) -> None:
    config = {**settings(), "schedule": section}
    with pytest.raises(ConfigError, match="would both set the rate"):
        HybridTrainer(*two_groups(), loss_fn=loss_fn, config=config)


def test_an_optimizer_without_a_rate_is_refused() -> None:
    class Rateless(torch.optim.Optimizer):
        """Moves weights by itself."""

        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

    model, _ = two_groups()
    with pytest.raises(ConfigError, match="Rateless has groups without a rate"):
        HybridTrainer(model, Rateless(model.parameters()), loss_fn=loss_fn, config=settings())


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
