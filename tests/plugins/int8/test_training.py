"""int8 training: nothing but codes is held, and a run goes on bit for bit from any state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, same_tensors
from torch import nn
from torch.nn import functional

from neaptide import ConfigError, HybridTrainer
from neaptide.testing.allocations import Allocations, counted
from neaptide.testing.tiny import STEADY_PREDICTOR, tiny_loss, tiny_task
from neaptide_plugins.int8.grid import round_to_grid
from neaptide_plugins.int8.training import TrainedWeight

if TYPE_CHECKING:
    from pathlib import Path

TRAINED = {"warmup": "int8", "full": "int8", "correct": "int8"}


def trainer(task: Any, settings: dict[str, Any], **plugins: dict[str, Any]) -> HybridTrainer:
    return HybridTrainer(
        task.model,
        task.optimizer,
        loss_fn=tiny_loss,
        config={"phases": CYCLE, "plugins": {"int8": settings, **plugins}},
        plugins=[STEADY_PREDICTOR],
    )


def weight_of(layer: nn.Module) -> TrainedWeight:
    codes = round_to_grid(layer.weight, layer.weight[0].numel(), 1)
    return TrainedWeight(codes, layer.weight, torch.device("cpu"))


def test_gradients_are_those_of_the_decoded_weight() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 4), torch.randn(3, 5, 8, requires_grad=True)
    weight = weight_of(layer)
    decoded = weight.decoded().requires_grad_()
    functional.linear(x, weight, layer.bias).square().sum().backward()
    own = weight.grad, layer.bias.grad, x.grad
    x.grad = layer.bias.grad = None
    functional.linear(x, decoded, layer.bias).square().sum().backward()
    for actual, expected in zip(own, (decoded.grad, layer.bias.grad, x.grad), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_convolution_has_its_gradient_too() -> None:
    torch.manual_seed(0)
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    weight = weight_of(layer)
    decoded = weight.decoded().requires_grad_()
    functional.conv2d(x, weight).square().sum().backward()
    functional.conv2d(x, decoded).square().sum().backward()
    torch.testing.assert_close(weight.grad, decoded.grad, rtol=1e-5, atol=1e-5)


def test_a_second_derivative_is_refused() -> None:
    layer, x = nn.Linear(8, 4), torch.randn(3, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        functional.linear(x, weight_of(layer)).square().sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_every_phase_has_the_weights_of_its_table() -> None:
    task = tiny_task(steps=20)
    up = task.model.blocks[0].up
    seen: dict[str, set[type]] = {}
    with trainer(task, {"full": "int8"}) as run:
        for batch in task.batches:
            result = run.step(batch)
            seen.setdefault(result.phase.name, set()).add(type(up._parameters["weight"]))
    expected = {"warmup": {nn.Parameter}, "full": {TrainedWeight}, "correct": {nn.Parameter}}
    assert expected == seen
    assert type(up.weight) is nn.Parameter


def test_afterwards_the_parameters_have_the_values_of_the_codes() -> None:
    task = tiny_task(steps=8)
    with trainer(task, TRAINED) as run:
        for batch in task.batches:
            run.step(batch)
    for block in task.model.blocks:
        value = block.up.weight.detach()
        again = round_to_grid(value, value.shape[1], 9).decode(torch.float32)
        assert torch.equal(value, again)


@pytest.mark.parametrize("granularity", ["tensor", "block"])
def test_it_learns_as_well_as_with_full_weights(granularity: str) -> None:
    def loss(plugins: dict[str, Any]) -> float:
        task = tiny_task(steps=90, coupled=False)
        config = {"plugins": plugins}
        with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as run:
            losses = [run.step(batch).loss for batch in task.batches]
        return sum(losses[-20:]) / 20

    own = loss({"int8": {**TRAINED, "granularity": granularity, "block": 8}})
    assert own < 1.1 * loss({})


def test_a_rollback_and_a_checkpoint_keep_every_bit(tmp_path: Path) -> None:
    def finished(resumed_at: int | None) -> str:
        task = tiny_task(steps=24)
        with trainer(task, TRAINED, ema={}) as run:
            for index, batch in enumerate(task.batches):
                if index == resumed_at:
                    run.save(tmp_path / "saved")
                    break
                run.step(batch)
            else:
                return run.digest()
        again = tiny_task(seed=5, steps=24)
        with trainer(again, TRAINED, ema={}) as run:
            run.load(tmp_path / "saved")
            for batch in task.batches[resumed_at:]:
                run.step(batch)
            return run.digest()

    expected = finished(None)
    for step in (1, 5, 11, 17):
        assert expected == finished(step)


def test_a_snapshot_comes_back_bit_for_bit() -> None:
    task = tiny_task(steps=6)
    with trainer(task, TRAINED) as run:
        run.step(task.batches[0])
        before = {name: value.clone() for name, value in run.store.snapshot().weights.items()}
        kept = run.store.snapshot(optimizer=True)
        run.step(task.batches[1])
        assert not same_tensors(before, run.store.snapshot().weights)
        run.store.restore(kept)
        assert same_tensors(before, run.store.snapshot().weights)


def test_between_updates_the_device_holds_codes_alone() -> None:
    width = 256

    def held(*, int8: bool) -> list[int]:
        with counted() as allocations:
            layers = [nn.Linear(width, width, bias=False) for _ in range(5)]
            model = nn.Sequential(*layers)

            def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
                out = model(batch).square().mean()
                Allocations.mark("saved")
                return out

            with HybridTrainer(
                model,
                torch.optim.SGD(model.parameters(), lr=1e-3),
                loss_fn=loss,
                config={"plugins": {"int8": TRAINED} if int8 else {}},
            ) as run:
                for _ in range(3):
                    run.step(torch.randn(2, width))
        return allocations.at_marks()["saved"]

    saved = held(int8=False)[-1] - held(int8=True)[-1]
    assert saved > 0.7 * 4 * width * width * 4  # of float32 weights, the activations counted


@pytest.mark.parametrize(
    "beside",
    [
        {"activation-checkpointing": {}},
        {"gradient-accumulation": {"steps": 3}},
        {"mixed-precision": {"full": "bf16", "warmup": "bf16", "correct": "bf16"}},
        {"profiler": {}, "ema": {}, "divergence-monitor": {}},
    ],
    ids=" ".join,
)
def test_it_trains_beside(beside: dict[str, Any]) -> None:
    task = tiny_task(steps=12, coupled=False)
    with trainer(task, TRAINED, **beside) as run:
        results = [run.step(batch) for batch in task.batches]
    assert all(result.updated for result in results)
    assert all(value.isfinite().all() for value in task.model.state_dict().values())


def test_streamed_weights_cannot_be_trained_so() -> None:
    with pytest.raises(ConfigError, match=r"stay on the device .* @ plugins.int8.full"):
        trainer(tiny_task(), {"full": "int8"}, **{"layer-streaming": {}})


def test_a_dtype_that_does_not_hold_the_grid_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).half()
    with pytest.raises(ConfigError, match=r"'0.weight' is torch.float16.* @ plugins.int8"):
        HybridTrainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            config={"plugins": {"int8": {"full": "int8"}}},
        )
