"""A kernel of the run takes AdamW's step over split masters; whatever it cannot take is left."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from stepped_away import Away, assert_same_state, parameters_of, step_resident
from support import DEVICE, ROUNDS_OTHERWISE
from torch import nn, optim
from torch.nn import functional

from neaptide import HybridTrainer
from neaptide_kernels.adamw_split import adamw_split_step
from neaptide_kernels.adamw_split.split_master import split
from neaptide_kernels.registry import KERNELS, Provider
from neaptide_plugins.layer_streaming.updates.kernel_step import left_by_kernels
from neaptide_plugins.layer_streaming.updates.stepping import step_away
from neaptide_toolkit.testing.parting import same_bits

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES = [(5, 7), (64,), ()]


class Counting:
    """A provider that is no reference, computes what it does, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def run(self, *arguments: Any) -> None:
        self.calls += 1
        adamw_split_step.spec.reference(*arguments)


@pytest.fixture
def kernel() -> Iterator[Counting]:
    counting = Counting()
    name = adamw_split_step.spec.name
    provider = Provider(op=name, name="counting", run=counting.run, priority=20)
    KERNELS.add(provider)
    yield counting
    KERNELS.remove(provider)


def moved(resident: list[nn.Parameter], **options: Any) -> Away:
    parameters = [nn.Parameter(p.detach().bfloat16()) for p in resident]
    optimizer = optim.AdamW(parameters, lr=1e-2, **options)
    return Away(optimizer, parameters, masters=[p.detach() for p in resident])


def assert_same_masters(resident: list[nn.Parameter], away: Away) -> None:
    pairs = [split(p.detach()) for p in resident]
    assert all(map(same_bits, [hi for hi, _ in pairs], away.weights))
    assert all(map(same_bits, [lo for _, lo in pairs], away.lows))


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_a_thousand_steps_are_float32_adamw(kernel: Counting, *, tensor_lr: bool) -> None:
    resident = parameters_of(SHAPES)
    expected = optim.AdamW(resident, lr=1e-2, weight_decay=0.1)
    away = moved(resident, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for step in range(1000):
        rate = 1e-2 * (1 + math.cos(step / 100)) / 2
        for optimizer in (expected, away.optimizer):
            optimizer.param_groups[0]["lr"] = torch.tensor(rate) if tensor_lr else rate
        chosen = [place for place in range(len(SHAPES)) if (step + place) % 7]
        gradients = {i: torch.randn(SHAPES[i], generator=generator).bfloat16() for i in chosen}
        step_resident(expected, resident, {i: g.float() for i, g in gradients.items()})
        items = [away.item(i, gradient) for i, gradient in gradients.items()]
        assert [] == left_by_kernels(away.optimizer, items)
        if step == 500:  # what is loaded counts, as after a resume
            for parameter, state in zip(away.parameters, away.states, strict=True):
                for name, tensor in state.items():
                    away.optimizer.state[parameter][name] = tensor.clone()
                    tensor.fill_(torch.nan)
    assert_same_masters(resident, away)
    assert_same_state(expected, away.optimizer, away)
    assert kernel.calls >= 1000


def test_the_rest_of_a_master_may_be_shown_and_loaded(kernel: Counting) -> None:
    away = moved(parameters_of([(3,)]), weight_decay=0.0)
    away.optimizer.param_groups[0]["lr"] = 0.0
    parameter, lo = away.parameters[0], away.lows[0]
    assert lo is not None
    item = away.item(0, torch.zeros(3), shown={**away.states[0], "lo": lo})
    away.optimizer.state[parameter]["lo"] = lo
    assert [] == left_by_kernels(away.optimizer, [item])
    assert {"step", "exp_avg", "exp_avg_sq", "lo"} == set(away.optimizer.state[parameter])
    away.optimizer.state[parameter]["lo"] = torch.full((3,), 5, dtype=torch.int16)
    assert [] == left_by_kernels(away.optimizer, [item])
    assert [5, 5, 5] == lo.tolist()
    assert away.optimizer.state[parameter]["lo"] is lo
    assert kernel.calls >= 2


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"foreach": True}])
def test_other_options_are_left(kernel: Counting, options: dict[str, Any]) -> None:
    away = moved(parameters_of(SHAPES), **options)
    items = [away.item(i, torch.ones(shape)) for i, shape in enumerate(SHAPES)]
    assert items == left_by_kernels(away.optimizer, items)
    assert (0, 0) == (kernel.calls, len(away.optimizer.state))


def test_a_fused_step_is_taken_and_counts_on_the_cpu(kernel: Counting) -> None:
    away = moved(parameters_of(SHAPES), fused=True)
    items = [away.item(i, torch.ones(shape)) for i, shape in enumerate(SHAPES)]
    for count in (1, 2):
        assert [] == left_by_kernels(away.optimizer, items)
        steps = [state["step"] for state in away.optimizer.state.values()]
        assert [(count, "cpu")] * 3 == [(step.item(), step.device.type) for step in steps]
        for state in away.optimizer.state.values():  # as `load_state_dict` places them
            state["step"] = state["step"].to(DEVICE)
    assert kernel.calls >= 2


def test_what_has_no_split_master_is_left(kernel: Counting) -> None:
    away = moved(parameters_of(SHAPES))
    items = [away.item(i, torch.ones(shape)) for i, shape in enumerate(SHAPES)]
    whole = away.item(1, torch.ones(64), lo=None)
    stranger = attrs.evolve(items[2], parameter=nn.Parameter(torch.ones(())))
    assert [whole, stranger] == left_by_kernels(away.optimizer, [items[0], whole, stranger])
    assert kernel.calls >= 1


def test_without_a_kernel_everything_is_left() -> None:
    away = moved(parameters_of(SHAPES))
    items = [away.item(i, torch.ones(shape)) for i, shape in enumerate(SHAPES)]
    with KERNELS.using(adamw_split_step="reference"):
        assert items == left_by_kernels(away.optimizer, items)
    assert not away.optimizer.state


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the kernel is for a CPU")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_the_kernel_for_a_cpu_has_the_bits_of_the_optimizer(
    *, fused: bool, tensor_lr: bool
) -> None:
    pytest.importorskip("numba")
    taken, stepped = (moved(parameters_of(SHAPES), fused=fused, weight_decay=0.1) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        gradients = [torch.randn(shape, generator=generator).bfloat16() for shape in SHAPES]
        for away in (taken, stepped):
            rate = 1e-2 / (1 + step)
            away.optimizer.param_groups[0]["lr"] = torch.tensor(rate) if tensor_lr else rate
        given, beside = (
            [away.item(i, gradient.clone()) for i, gradient in enumerate(gradients)]
            for away in (taken, stepped)
        )
        assert [] == left_by_kernels(taken.optimizer, given)
        step_away(stepped.optimizer, beside)
    assert all(map(same_bits, taken.weights, stepped.weights))
    assert all(map(same_bits, taken.lows, stepped.lows))
    assert_same_state(stepped.optimizer, taken.optimizer, taken)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(x).tanh()


def digest_of_a_run() -> str:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(4)]).to(DEVICE, torch.bfloat16)
    settings = {"update": "in_backward", "master": "split"}

    def loss(net: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(net(x).float(), torch.ones(len(x), 8, device=DEVICE))

    trainer = HybridTrainer(
        model,
        optim.AdamW(model.parameters(), lr=1e-2),
        loss_fn=loss,
        config={"plugins": {"layer-streaming": settings}},
    )
    with trainer:
        for _ in range(10):
            trainer.step(torch.randn(4, 8, dtype=torch.bfloat16).to(DEVICE))
        return trainer.digest()


@pytest.mark.skipif(ROUNDS_OTHERWISE, reason="there it agrees with torch's steps within 1e-6")
def test_a_streamed_run_steps_by_the_kernel(kernel: Counting) -> None:
    by_kernel = digest_of_a_run()
    assert kernel.calls >= 40
    with KERNELS.using(adamw_split_step="reference"):
        assert by_kernel == digest_of_a_run()
