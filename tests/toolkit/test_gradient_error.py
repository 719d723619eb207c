"""Gradients of one micro-batch, exact and approximate, beside a run that does not notice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import plugin_with, stranger, tiny_trainer
from torch import nn
from torch.nn import functional

from neaptide import hookimpl
from neaptide.api.steps import WeighedLoss
from neaptide_toolkit.gradient_error import GradientError, compare, gradients, sample
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.testing import HOSTILE_STORE
from neaptide_toolkit.testing.tiny import TinyNet, tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import PluginSpec


def measuring(results: list[list[torch.Tensor | None]], elements: int = 10_000) -> PluginSpec:
    """Return a plugin that takes the gradients of every micro-batch twice beside the run."""

    class Members:
        @hookimpl
        def on_run_start(self, model: nn.Module, store: Any) -> None:
            self.store = store
            self.sampled = sample(model, store, elements=elements)

        @hookimpl
        def around_forward(self) -> Callable[..., WeighedLoss]:
            def forward(
                following: Callable[..., WeighedLoss], *, moment: str, **arguments: Any
            ) -> WeighedLoss:
                def call() -> WeighedLoss:
                    return following(moment=moment, **arguments)

                if moment == "train":
                    results.extend(
                        gradients(arguments["model"], self.store, call, self.sampled.parameters)
                        for _ in range(2)
                    )
                return call()

            return forward

    members = {name: value for name, value in vars(Members).items() if not name.startswith("__")}
    return stranger(plugin_with(**members), "measuring", numerics="exact")


@pytest.mark.parametrize(
    "beside",
    [
        [],
        [HOSTILE_STORE],
        ["activation-checkpointing"],
        ["layer-streaming"],
        ["activation-checkpointing", HOSTILE_STORE],
    ],
    ids=lambda beside: "-".join(getattr(one, "name", one) for one in beside) or "resident",
)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"plugins": {"mixed-precision": {"warmup": "bf16", "full": "bf16"}}},
        {"plugins": {"gradient-accumulation": {"steps": 3}}},
    ],
    ids=["fp32", "bf16", "accumulated"],
)
def test_a_run_goes_on_as_if_nothing_had_been_measured(
    beside: list[Any], config: dict[str, Any]
) -> None:
    def digest(*more: Any) -> str:
        trainer, batches = tiny_trainer(config, [*config.get("plugins", {}), *beside, *more])
        with trainer:
            for batch in batches[:4]:
                trainer.step(batch)
            return trainer.digest()

    results: list[list[torch.Tensor | None]] = []
    assert digest() == digest(measuring(results))
    assert results
    for one, other in zip(results[::2], results[1::2], strict=True):
        assert all(gradient is not None and gradient.isfinite().all() for gradient in one)
        assert compare(one, other).squared == 0.0, "dropout differs"


def test_what_streams_inside_its_backward_is_updated_once() -> None:
    table = {"plugins": {"layer-streaming": {"update": "in_backward", "clip": "per_tensor"}}}
    digests = []
    for more in ([], [measuring([])]):
        trainer, batches = tiny_trainer(table, ["layer-streaming", *more])
        with trainer:
            for batch in batches[:3]:
                trainer.step(batch)
            digests.append(trainer.digest())
    assert digests[0] == digests[1]


def test_the_gradients_are_those_of_a_backward() -> None:
    task = tiny_task(coupled=False)
    store = ResidentStore(task.model, task.optimizer)
    batch = task.batches[0]

    def loss() -> WeighedLoss:
        value = functional.cross_entropy(task.model(batch["x"]), batch["y"])
        return WeighedLoss(value, 12, is_sum=False)

    sampled = sample(task.model, store)
    task.model.eval()
    found = gradients(task.model, store, loss, sampled.parameters)
    scaled = gradients(task.model, store, loss, sampled.parameters, loss_scale=1024.0)
    assert all(parameter.grad is None for parameter in task.model.parameters())
    assert not task.model.training
    loss().value.backward()
    expected = [parameter.grad for parameter in sampled.parameters]
    assert compare(expected, found).squared == 0.0
    assert compare(expected, scaled).squared == 0.0
    assert [name for name, p in task.model.named_parameters() if p.requires_grad] == list(
        sampled.names
    )
    sampled.parameters[0].requires_grad_(requires_grad=False)
    frozen, *others = gradients(task.model, store, loss, sampled.parameters)
    assert frozen is None
    assert compare(expected[1:], others).squared == 0.0


def test_modes_and_buffers_come_back_when_the_model_raises() -> None:
    task = tiny_task()
    store = ResidentStore(task.model, task.optimizer)
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    random = torch.get_rng_state()

    def call() -> WeighedLoss:
        task.model(task.batches[0]["x"])
        task.model.eval()
        msg = "out of luck"
        raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="out of luck"):
        gradients(task.model, store, call, list(task.model.parameters()))
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    assert task.model.training
    assert torch.equal(random, torch.get_rng_state())


def test_a_loss_without_weights_is_an_error() -> None:
    task = tiny_task()
    store = ResidentStore(task.model, task.optimizer)
    with pytest.raises(ValueError, match="depends on no trainable parameter"):
        gradients(
            task.model,
            store,
            lambda: WeighedLoss(torch.ones(()), 1, is_sum=False),
            [nn.Parameter()],
        )
    task.model.requires_grad_(requires_grad=False)
    with pytest.raises(ValueError, match="depends on no trainable parameter"):
        gradients(
            task.model,
            store,
            lambda: WeighedLoss(torch.ones((), requires_grad=True), 1, is_sum=False),
            list(task.model.parameters()),
        )


# -- which parameters -------------------------------------------------------------------------


def test_a_sample_is_spread_over_the_depth() -> None:
    model = nn.Sequential(*(nn.Linear(10, 10, bias=False) for _ in range(16)))
    store = ResidentStore(model, torch.optim.SGD(model.parameters(), lr=0.1))
    sampled = sample(model, store, elements=450)
    assert sampled.names == ("0.weight", "4.weight", "8.weight", "12.weight")
    assert (400, None) == (sampled.elements, sampled.missing)
    assert sampled.names == sample(model, store, elements=450).names


def test_at_least_one_parameter_is_sampled() -> None:
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 3, bias=False))
    store = ResidentStore(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert sample(model, store, elements=1).names == ("1.weight",)


def test_what_is_not_asked_for_and_what_is_frozen_stays_out() -> None:
    model = TinyNet()
    store = ResidentStore(model, torch.optim.SGD(model.parameters(), lr=0.1))
    sampled = sample(model, store, wanted=lambda span: len(span.shape) == 2)
    assert "first.weight" not in sampled.names
    assert all(parameter.ndim == 2 for parameter in sampled.parameters)
    nothing = sample(model, store, wanted=lambda _: False)
    assert ((), "none of the trainable parameters is eligible") == (
        nothing.parameters,
        nothing.missing,
    )
    model.requires_grad_(False)
    assert sample(model, store).missing == "the model has no trainable parameters"


def test_a_model_that_streams_whole_says_so() -> None:
    seen: list[Any] = []

    class Members:
        @hookimpl
        def on_run_start(self, model: nn.Module, store: Any) -> None:
            seen.append(sample(model, store, wanted=lambda span: span.name.startswith("blocks")))

    members = {"on_run_start": Members.on_run_start}
    trainer, _ = tiny_trainer({}, ["layer-streaming", stranger(plugin_with(**members))])
    with trainer:
        assert seen[0].missing.startswith("none of the 26 eligible parameters stays on the dev")
        assert "(they are on: host)" in seen[0].missing


# -- the figures --------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=1, max_size=8),
)
def test_the_figures_are_those_of_one_long_vector(pairs: list[tuple[float, float]]) -> None:
    exact, other = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
    error = compare([exact[:1], exact[1:]], [other[:1], other[1:]])
    assert error.squared == pytest.approx(float((exact - other).square().sum()))
    assert error.exact == pytest.approx(float(exact.square().sum()))
    assert error.product == pytest.approx(float(exact @ other), abs=1e-9)
    assert error.approximate == pytest.approx(float(other.square().sum()))


def test_relative_error_and_cosine() -> None:
    error = compare([torch.tensor([3.0, 0.0])], [torch.tensor([3.0, 4.0])])
    assert (4 / 3, 0.6, True) == (error.relative, pytest.approx(0.6), error.finite)
    assert (0.0, 1.0) == (compare([None], [None]).relative, compare([None], [None]).cosine)
    missing = compare([torch.ones(2)], [None])
    assert (1.0, 0.0) == (missing.relative, missing.cosine)
    assert compare([torch.zeros(2)], [torch.ones(2)]).relative == math.inf


def test_complex_gradients_count_with_both_parts() -> None:
    error = compare([torch.tensor([3 + 4j]), None], [torch.tensor([3 + 1j]), torch.tensor([2j])])
    assert GradientError(squared=13.0, exact=25.0, approximate=14.0, product=13.0) == error


def test_factors_measure_in_another_metric() -> None:
    exact, other = [torch.zeros(2), torch.ones(1)], [torch.tensor([1.0, 2.0]), None]
    error = compare(exact, other, factors=[torch.tensor([2.0, 0.5]), None])
    assert GradientError(squared=6.0, exact=1.0, approximate=5.0, product=0.0) == error


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_what_is_not_finite_was_not_measured(wrong: float) -> None:
    error = compare([torch.ones(2)], [torch.tensor([1.0, wrong])])
    assert not error.finite
    assert not error.relative < math.inf
