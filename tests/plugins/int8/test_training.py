"""int8 training: nothing but codes is held, and a run goes on bit for bit from any state."""

from __future__ import annotations

import copy
import io
import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, same_tensors
from torch import nn
from torch.nn import functional

from neaptide import ConfigError, HybridTrainer
from neaptide_plugins.int8.grid import round_to_grid
from neaptide_plugins.int8.scheme import Scheme
from neaptide_plugins.int8.targets import Target, find
from neaptide_plugins.int8.training import TrainedWeight, Training
from neaptide_plugins.int8.weight import computing
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.allocations import Allocations, counted
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss, tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

SCHEME = Scheme("channel", 64, symmetric=True)
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


@pytest.mark.parametrize("granularity", ["block", pytest.param("tensor", marks=pytest.mark.slow)])
def test_it_learns_as_well_as_with_full_weights(granularity: str) -> None:
    def loss(plugins: dict[str, Any]) -> float:
        task = tiny_task(steps=60, coupled=False)
        config = {"plugins": plugins}
        with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as run:
            losses = [run.step(batch).loss for batch in task.batches]
        return sum(losses[-20:]) / 20

    blocks = {"block": 8} if granularity == "block" else {}
    own = loss({"int8": {**TRAINED, "granularity": granularity, **blocks}})
    assert own < 1.1 * loss({})


@pytest.mark.parametrize(
    ("settings", "saved_at", "begun"),
    [
        (TRAINED, 8, 0),  # in Correct
        ({"full": "int8"}, 6, 0),  # at a jump
        ({"full": "int8"}, 1, 3),  # in Warmup, into a run that is in Full
    ],
    ids=str,
)
def test_a_resume_keeps_every_bit(
    settings: dict[str, str], saved_at: int, begun: int, tmp_path: Path
) -> None:
    task, again = tiny_task(steps=10), tiny_task(seed=5, steps=4)
    with trainer(task, settings, ema={}) as run:
        for step, batch in enumerate(task.batches):
            if step == saved_at:
                run.save(tmp_path / "saved")
            run.step(batch)
        expected = run.digest()
    with trainer(again, settings, ema={}) as run:
        for batch in again.batches[:begun]:
            run.step(batch)
        run.load(tmp_path / "saved")
        for batch in task.batches[saved_at:]:
            run.step(batch)
        assert expected == run.digest()


def test_an_evaluation_changes_nothing_that_comes_after() -> None:
    def finished(*, evaluating: bool) -> str:
        task = tiny_task(steps=4)
        with trainer(task, TRAINED, ema={}) as run:
            for batch in task.batches:
                run.step(batch)
                if evaluating:
                    run.evaluate(task.batches[:1])
            return run.digest()

    assert finished(evaluating=False) == finished(evaluating=True)


def test_who_reads_the_model_gets_the_values_of_the_codes() -> None:
    task = tiny_task(steps=1)
    with trainer(task, TRAINED) as run:
        run.step(task.batches[0])
        layer = task.model.blocks[0].up
        values = layer.weight.decoded()
        assert values.abs().sum() > 0
        pickled = io.BytesIO()
        torch.save(layer, pickled)
        pickled.seek(0)
        copies = [copy.deepcopy(layer), torch.load(pickled, weights_only=False)]
        assert torch.equal(values, task.model.state_dict()["blocks.0.up.weight"])
        assert [nn.Parameter] * 2 == [type(each.weight) for each in copies]
        assert all(torch.equal(values, each.weight) for each in copies)
        assert torch.equal(values, layer.weight.data)
        layer.weight.grad = values
        assert dict(run.model.named_parameters())["blocks.0.up.weight"].grad is values


def test_a_state_dict_that_somebody_holds_is_no_obstacle() -> None:
    task = tiny_task(steps=4)
    with trainer(task, {"full": "int8"}) as run:
        run.step(task.batches[0])
        held = task.model.state_dict()
        for batch in task.batches[1:]:
            run.step(batch)
        assert isinstance(task.model.blocks[0].up.weight, TrainedWeight)
    assert held["blocks.0.up.weight"].isfinite().all()


def test_what_it_detaches_a_model_computes_with() -> None:
    layer = nn.Linear(8, 4)
    weight = weight_of(layer)
    with computing():
        product = torch.ones(8) @ weight.detach().t()
        with pytest.raises(RuntimeError, match="writes to a weight that is int8 in this phase"):
            weight.data.clamp_(-1, 1)
    assert torch.equal(torch.ones(8) @ weight.decoded().t(), product)


def test_gradients_that_are_asked_for_are_those_of_the_backward() -> None:
    weight, x = weight_of(nn.Linear(8, 4)), torch.randn(3, 8)
    (asked,) = torch.autograd.grad(functional.linear(x, weight).square().sum(), [weight])
    functional.linear(x, weight).square().sum().backward()
    assert torch.equal(weight.grad, asked)


def test_the_output_may_be_written_to() -> None:
    weight, x = weight_of(nn.Linear(8, 4)), torch.randn(3, 5, 8)
    expected = functional.linear(x, weight).relu()
    assert torch.equal(expected, functional.linear(x, weight).relu_())


def test_under_vmap_there_is_the_same_product() -> None:
    weight, x = weight_of(nn.Linear(8, 4)), torch.randn(3, 8)
    product = torch.vmap(lambda row: functional.linear(row, weight))(x)
    torch.testing.assert_close(functional.linear(x, weight), product)


def test_who_keeps_the_parameter_elsewhere_computes_with_nan() -> None:
    task = tiny_task(steps=1)
    elsewhere = task.model.blocks[0].up.weight
    with trainer(task, TRAINED) as run:
        run.step(task.batches[0])
        assert elsewhere.isnan().all()
    assert elsewhere.isfinite().all()


def test_one_that_cannot_end_leaves_no_other_behind() -> None:
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
    targets = find(layers, None, (), SCHEME)
    failing = [targets[1].name]

    def keep(target: Target, keeper: object) -> Callable[[], None]:
        def back() -> None:
            if target.name in failing:
                raise MemoryError

        return back

    def read(target: Target) -> AbstractContextManager[torch.Tensor]:
        return nullcontext(target.parameter.detach())

    training = Training(targets, SCHEME, torch.device("cpu"), read, keep)
    training.begin()
    with pytest.raises(MemoryError):
        training.end()
    kinds = [type(layer.weight) for layer in layers]
    assert [nn.Parameter, TrainedWeight, nn.Parameter, nn.Parameter] == kinds
    failing.clear()
    training.end()
    assert type(layers[1].weight) is nn.Parameter


def test_its_estimate_is_what_is_allocated() -> None:
    check_plugin("int8", TRAINED, laws=["estimate-is-allocated"])


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
        {
            "activation-checkpointing": {},
            "activation-compression": {"group": 16, "min_elements": 16},
        },
    ],
    ids=" ".join,
)
def test_it_trains_beside(beside: dict[str, Any]) -> None:
    task = tiny_task(steps=12, coupled=False)
    with trainer(task, TRAINED, **beside) as run:
        results = [run.step(batch) for batch in task.batches]
    assert all(result.updated for result in results)
    assert all(value.isfinite().all() for value in task.model.state_dict().values())


def test_torchs_fused_encoder_layer_runs_beside_mixed_precision() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 3)
    )

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = model(batch)
        return output.float().square().mean()

    config = {"plugins": {"int8": {}, "mixed-precision": {}}, "phases": CYCLE}
    with HybridTrainer(
        model,
        torch.optim.AdamW(model.parameters()),
        loss_fn=loss_fn,
        config=config,
        plugins=[STEADY_PREDICTOR],
    ) as run:
        results = [run.step(torch.randn(4, 5, 8)) for _ in range(12)]
        assert math.isfinite(run.evaluate([torch.randn(4, 5, 8)]))
    assert any(result.jump for result in results)


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
