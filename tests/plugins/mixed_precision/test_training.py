"""Real runs: the dtype of every phase, overflows that cost one update, exact resumes."""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer
from torch import nn
from torch.nn import functional

from neaptide import (
    FULL,
    NOTES,
    CheckpointError,
    ConfigError,
    HybridTrainer,
    Loss,
    Outcome,
    hookimpl,
)
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

TRAINED = ("warmup", "full", "correct")
EVERYWHERE = ("warmup", "full", "predict", "correct", "evaluate")
FP16 = {**dict.fromkeys(TRAINED, "fp16"), "initial_scale": 1024.0}
FP32 = {"dtype": "fp32"}


class Probe(nn.Module):
    """A linear layer that notes the dtype of its products, and whether it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.seen: list[tuple[bool, torch.dtype]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        self.seen.append((torch.is_grad_enabled(), result.dtype))
        return result


def squared_error(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(model(batch), torch.ones(len(batch), 1))


def small_trainer(
    settings: dict[str, Any], loss_fn: Any = squared_error, **given: Any
) -> HybridTrainer:
    model = Probe()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    plugins = {"mixed-precision": settings, **given.pop("others", {})}
    config = {"phases": CYCLE, "plugins": plugins, **given.pop("config", {})}
    return HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config, **given)


def scaler_of(trainer: HybridTrainer) -> Any:
    return trainer.hooks.plugins["mixed-precision"]._scaler


def dtypes_by_phase(settings: dict[str, Any]) -> dict[str, torch.dtype]:
    """Return what the products of each phase were computed in, each in one dtype throughout."""
    seen: dict[str, set[torch.dtype]] = {}
    with small_trainer(settings, plugins=[STEADY_PREDICTOR]) as trainer:
        for _ in range(10):
            result = trainer.step(torch.randn(8, 4))
            for trained, dtype in trainer.model.seen:
                seen.setdefault(result.phase.name if trained else "predict", set()).add(dtype)
            trainer.model.seen.clear()
        trainer.evaluate([torch.randn(8, 4)])
        seen["evaluate"] = {dtype for _, dtype in trainer.model.seen}
    return {phase: dtype for phase, (dtype,) in seen.items()}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, dict.fromkeys(EVERYWHERE, torch.bfloat16)),
        ({"preset": "conservative"}, {"predict": torch.bfloat16}),
        ({"preset": "aggressive"}, dict.fromkeys(EVERYWHERE, torch.bfloat16)),
        ({"dtype": "fp16"}, dict.fromkeys(EVERYWHERE, torch.float16)),
        ({"evaluate": "fp32"}, dict.fromkeys(EVERYWHERE[:-1], torch.bfloat16)),
        (FP32, {}),
        (
            {
                "dtype": "fp32",
                "full": "bf16",
                "correct": "fp16",
                "predict": "fp16",
                "evaluate": "bf16",
            },
            {
                "full": torch.bfloat16,
                "correct": torch.float16,
                "predict": torch.float16,
                "evaluate": torch.bfloat16,
            },
        ),
    ],
)
def test_each_phase_computes_in_its_dtype(
    settings: dict[str, Any], expected: dict[str, torch.dtype]
) -> None:
    full = dict.fromkeys(EVERYWHERE, torch.float32) | expected
    assert full == dtypes_by_phase(settings)


def test_one_line_at_the_start_says_what_runs_where(tmp_path: Path) -> None:
    settings = {"dtype": "bf16", "full": "fp16", "evaluate": "fp32"}
    with small_trainer(settings, config={"run": {"dir": str(tmp_path)}}) as trainer:
        trainer.step(torch.randn(8, 4))
    lines = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    (event,) = [line for line in map(json.loads, lines) if "dtypes" in line["event"]]
    assert {"warmup": "bf16", "full": "fp16", "correct": "bf16", "evaluate": "fp32"}.items() <= (
        event.items()
    )
    said = "mixed-precision: bf16 in warmup, correct, predict; fp16 in full; fp32 in evaluate"
    assert (said,) == trainer.run.stash.get(NOTES)


def test_the_loss_function_is_covered() -> None:
    seen = []

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        hidden = model(batch)
        product = hidden.float().T @ hidden.float()
        seen.append(product.dtype)
        return product.sum()

    with small_trainer({"warmup": "bf16"}, loss_fn) as trainer:
        trainer.step(torch.randn(8, 4))
    assert [torch.bfloat16] == seen


def test_fp32_everywhere_is_bitwise_no_plugin() -> None:
    weights = []
    for plugins in ({}, {"mixed-precision": FP32}):
        trainer, batches = tiny_trainer(
            {"phases": CYCLE, "plugins": plugins}, plugins=[STEADY_PREDICTOR]
        )
        with trainer:
            losses = [trainer.step(batch).loss for batch in batches[:14]]
            losses.append(trainer.evaluate(batches[14:16]))
        weights.append({**tensors_of(trainer.model), "losses": torch.tensor(losses).double()})
    assert same_tensors(*weights)


def test_an_autocast_around_the_loop_leaves_no_stale_weights() -> None:
    weights = []
    for around in (False, True):
        trainer, batches = tiny_trainer({"plugins": {"mixed-precision": {"full": "bf16"}}})
        with trainer, torch.autocast("cpu", torch.bfloat16, enabled=around):
            for batch in batches[:4]:
                trainer.step(batch)
        weights.append(tensors_of(trainer.model))
    assert same_tensors(*weights)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_loss_of_few_bits_is_not_rounded_again(precision: str) -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> Loss:
        return Loss((model(batch) * 0.0 + 0.125).sum(), 3.0)

    with small_trainer({"warmup": precision}, loss_fn) as trainer:
        assert pytest.approx(1 / 3, rel=1e-6) == trainer.step(torch.randn(8, 4)).loss


def test_small_gradients_reach_the_weights_through_the_scale() -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).float().sum() * 1e-9  # of fp16, the least is 6e-8

    moved = {}
    for scale in (1.0, 65536.0):
        trainer = small_trainer({**FP16, "initial_scale": scale}, loss_fn)
        before = tensors_of(trainer.model)
        with trainer:
            trainer.step(torch.randn(8, 4))
        moved[scale] = not same_tensors(before, tensors_of(trainer.model))
    assert {1.0: False, 65536.0: True} == moved


def test_an_overflow_skips_one_update_and_halves_the_scale() -> None:
    trainer = small_trainer(FP16)
    with trainer:
        trainer.step(torch.randn(8, 4))
        before = tensors_of(trainer.model)
        state = copy.deepcopy(trainer.optimizer.state_dict()["state"])
        # The loss itself is fine in float32; the scaled gradient is no fp16 number.
        result = trainer.step(torch.randn(8, 4) * 100)
        assert (Outcome.SKIPPED, True) == (result.outcome, math.isfinite(result.loss))
        assert same_tensors(before, tensors_of(trainer.model))
        after = trainer.optimizer.state_dict()["state"]
        assert state.keys() == after.keys()
        assert all(same_tensors(state[key], after[key]) for key in state)
        assert 512.0 == scaler_of(trainer).current.scale
        assert trainer.step(torch.randn(8, 4)).updated
        assert 512.0 == scaler_of(trainer).current.scale


def test_the_scale_grows_after_enough_updates_in_a_row() -> None:
    scales = []
    with small_trainer({**FP16, "growth_interval": 3, "initial_scale": 4.0}) as trainer:
        for factor in (1.0, 1.0, math.nan, 1.0, 1.0, 1.0, 1.0):
            trainer.step(torch.randn(8, 4) * factor)
            scales.append(scaler_of(trainer).current.scale)
    assert [4.0, 4.0, 2.0, 2.0, 2.0, 4.0, 4.0] == scales


def test_updates_from_fp16_ask_for_the_check_of_their_gradients() -> None:
    asked = []

    @hookimpl
    def around_optimizer_step(self: Any) -> Any:
        def step(following: Any, *, check_norm: bool, **arguments: Any) -> Outcome:
            asked.append(check_norm)
            outcome: Outcome = following(check_norm=check_norm, **arguments)
            return outcome

        return step

    inside = stranger(
        plugin_with(around_optimizer_step=around_optimizer_step), after={"mixed-precision"}
    )
    with small_trainer({"full": "fp16"}, plugins=[inside]) as trainer:
        for phase in ("warmup", "full"):
            trainer.step(torch.randn(8, 4), phase=phase)
    assert [False, True] == asked


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_nan_batch_costs_one_update_in_every_dtype(precision: str) -> None:
    trainer = small_trainer({**FP16, **dict.fromkeys(TRAINED, precision)})
    with trainer:
        for index in range(8):
            before = tensors_of(trainer.model)
            result = trainer.step(torch.randn(8, 4) * (math.nan if index % 3 == 2 else 1.0))
            assert (index % 3 != 2) == result.updated
            assert (index % 3 == 2) == same_tensors(before, tensors_of(trainer.model))


def test_phases_in_fp32_neither_use_nor_move_the_scale() -> None:
    with small_trainer({"full": "fp16", "growth_interval": 1, "initial_scale": 16.0}) as trainer:
        scales = []
        for index in range(4):  # Warmup, Warmup, Full, Full
            trainer.step(torch.randn(8, 4) * (math.nan if index == 0 else 1.0))
            scales.append(scaler_of(trainer).current.scale)
    assert [16.0, 16.0, 32.0, 64.0] == scales


@pytest.mark.parametrize(
    ("settings", "expected"),
    [(FP16, {"mixed-precision.loss_scale": 1024.0}), ({"full": "bf16"}, {})],
)
def test_the_scale_is_a_metric_where_it_is_used(
    settings: dict[str, str], expected: dict[str, float]
) -> None:
    with small_trainer(settings) as trainer:
        assert expected == trainer.hooks.collect_metrics(0, FULL)


def test_a_resume_has_the_scale_and_its_count(tmp_path: Path) -> None:
    config = {"plugins": {"mixed-precision": {**FP16, "growth_interval": 4}}, "phases": CYCLE}

    def train(first: int, last: int, load: str = "", save: str = "") -> str:
        trainer, batches = tiny_trainer(config, plugins=[STEADY_PREDICTOR])
        with trainer:
            if load:
                trainer.load(tmp_path / load)
            for batch in batches[first:last]:
                trainer.step(batch)
            if save:
                trainer.save(tmp_path / save)
            return trainer.digest()

    expected = train(0, 12)
    for after in (3, 6):
        train(0, after, save=f"after-{after}")
        assert expected == train(after, 12, load=f"after-{after}")


ACROSS = {"gradient-accumulation": {"steps": 2, "across_steps": True}}


@pytest.mark.parametrize("accumulation_first", [False, True])
@pytest.mark.parametrize("phases", [("warmup", "full"), ("full", "warmup")])
def test_one_update_has_one_scale_though_the_precision_changes(
    phases: tuple[str, str], *, accumulation_first: bool
) -> None:
    settings = {"mixed-precision": {"warmup": "fp32", "full": "fp16", "initial_scale": 1024.0}}
    plugins = ACROSS | settings if accumulation_first else settings | ACROSS
    model = Probe()
    reference = copy.deepcopy(model)
    batches = [torch.randn(8, 4), torch.randn(8, 4)]
    scale = 1024.0 if phases[0] == "full" else 1.0
    for phase, batch in zip(phases, batches, strict=True):
        with torch.autocast("cpu", torch.float16, enabled=phase == "full"):
            loss = squared_error(reference, batch)
        (loss * scale).backward()
    for parameter in reference.parameters():
        parameter.grad *= 0.5 / scale
    torch.optim.SGD(reference.parameters(), lr=0.1).step()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with HybridTrainer(
        model, optimizer, loss_fn=squared_error, config={"plugins": plugins}
    ) as trainer:
        updated = [
            trainer.step(batch, phase=phase).updated
            for phase, batch in zip(phases, batches, strict=True)
        ]
    assert [False, True] == updated
    assert same_tensors(tensors_of(reference), tensors_of(model))


def test_a_resume_inside_an_accumulation_knows_what_carries_the_scale(tmp_path: Path) -> None:
    def train(first: int, last: int, *, load: bool = False, save: bool = False) -> str:
        trainer, batches = tiny_trainer(
            {"plugins": {"mixed-precision": {"full": "fp16"}, **ACROSS}}
        )
        with trainer:
            if load:
                trainer.load(tmp_path / "checkpoint")
            for index, batch in enumerate(batches[first:last], start=first):
                trainer.step(batch, phase=("full", "warmup")[index % 2])
            if save:
                trainer.save(tmp_path / "checkpoint")
            return trainer.digest()

    expected = train(0, 6)
    train(0, 3, save=True)
    assert expected == train(3, 6, load=True)


def test_scaled_gradients_are_not_loaded_where_nothing_unscales_them(tmp_path: Path) -> None:
    def trainer_in(precision: str) -> tuple[HybridTrainer, list[Any]]:
        return tiny_trainer({"plugins": {"mixed-precision": {"dtype": precision}, **ACROSS}})

    scaled, batches = trainer_in("fp16")
    with scaled:
        scaled.step(batches[0])
        assert scaler_of(scaled).carried
        scaled.save(tmp_path / "checkpoint")
    other, _ = trainer_in("bf16")
    with other, pytest.raises(CheckpointError, match="have the loss scale of fp16; resume it with"):
        other.load(tmp_path / "checkpoint", allow_changes=True)


def test_bf16_and_fp32_cost_no_middleware_around_the_backward_and_the_update() -> None:
    hooks = ("around_train_step", "around_backward", "around_optimizer_step")
    for precision, expected in (("fp32", False), ("bf16", False), ("fp16", True)):
        with small_trainer({"dtype": precision}) as trainer:
            plugin = trainer.hooks.plugins["mixed-precision"]
            found = [getattr(plugin, hook)() is not None for hook in hooks]
        assert [expected] * 3 == found


def refuse(gradient: torch.Tensor) -> None:
    """Fail in backward, which costs the gradients that wait."""
    raise ZeroDivisionError


def test_after_a_call_that_raised_the_scale_is_decided_anew() -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor | None) -> torch.Tensor:
        loss = squared_error(model, torch.ones(8, 4) if batch is None else batch)
        if batch is None:
            loss.register_hook(refuse)
        return loss

    with small_trainer({"full": "fp16"}, loss_fn, others=ACROSS) as trainer:
        trainer.step(torch.randn(8, 4), phase="warmup")
        assert False is scaler_of(trainer).carried
        with pytest.raises(ZeroDivisionError):
            trainer.step(None, phase="warmup")
        trainer.step(torch.randn(8, 4), phase="full")
        assert True is scaler_of(trainer).carried


def test_a_store_that_steps_in_backward_is_refused_in_fp16() -> None:
    class SteppedInBackward(ResidentStore):
        stores_gradients = False

    @hookimpl
    def provide_parameters(self: Any, model: Any, optimizer: Any) -> Any:
        return SteppedInBackward(model, optimizer)

    store = stranger(plugin_with(provide_parameters=provide_parameters))
    with pytest.raises(ConfigError, match="blocks are updated inside the backward"):
        small_trainer(FP16, plugins=[store])
