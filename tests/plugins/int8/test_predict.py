"""Predict with int8 weights: what is computed, what comes back, and what the device holds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from support import plugin_with, same_tensors, stranger
from torch import nn

from neaptide import HybridTrainer, Plugin, PluginSpec, Update, hookimpl
from neaptide.plugin import NoConfig
from neaptide_plugins.int8.weight import Int8Weight
from neaptide_toolkit.testing.allocations import Allocations, counted
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss, tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Run
    from neaptide.api.steps import Jump

EVERY_STEP = {
    "warmup": {"steps": 0},
    "full": {"steps": 1},
    "correct": {"steps": 0},
    "predict": {"correction_interval": 1, "max_horizon": 3},
}


def run(
    settings: dict[str, Any] | None,
    *more: PluginSpec | str,
    steps: int = 12,
    phases: dict[str, Any] = EVERY_STEP,
    **plugins: dict[str, Any],
) -> tuple[list[Jump], dict[str, torch.Tensor]]:
    """Return the jumps and the weights in the end; without int8 where `settings` is None."""
    task = tiny_task(steps=steps)
    chosen = {} if settings is None else {"int8": settings}
    config = {"phases": phases, "plugins": {**chosen, **plugins}}
    with HybridTrainer(
        task.model,
        task.optimizer,
        loss_fn=tiny_loss,
        config=config,
        plugins=[STEADY_PREDICTOR, *more],
    ) as trainer:
        jumps = [trainer.step(batch).jump for batch in task.batches]
    return [jump for jump in jumps if jump is not None], task.model.state_dict()


def test_jumps_are_judged_in_int8_and_the_weights_are_those_without_it() -> None:
    jumps, weights = run({})
    plain, expected = run(None)
    assert len(plain) == len(jumps) > 5
    assert all(jump.accepted for jump in jumps)
    assert all(
        one.loss_before != other.loss_before for one, other in zip(jumps, plain, strict=True)
    )
    for one, other in zip(jumps, plain, strict=True):
        assert pytest.approx(other.loss_before, rel=0.02) == one.loss_before
    assert same_tensors(expected, weights)


@pytest.mark.parametrize(
    "streaming",
    [{}, {"resident": 2}, {"mode": "graph"}, {"phases": ["warmup", "full", "correct"]}],
    ids=str,
)
def test_streamed_it_is_bitwise_the_same(streaming: dict[str, Any]) -> None:
    jumps, weights = run({"evaluate": "int8"})
    streamed, own = run({"evaluate": "int8"}, **{"layer-streaming": streaming})
    assert [(jump.loss_before, jump.loss_after) for jump in jumps] == [
        (jump.loss_before, jump.loss_after) for jump in streamed
    ]
    assert same_tensors(weights, own)


def test_a_refused_jump_leaves_every_bit() -> None:
    class Far(Plugin[NoConfig]):
        @hookimpl
        def propose_update(self, store: Any) -> Update:
            return Update(3, lambda span: torch.full(span.shape, 1e4))

    def trained(*, int8: bool) -> tuple[list[bool], dict[str, torch.Tensor]]:
        task = tiny_task(steps=6)
        with HybridTrainer(
            task.model,
            task.optimizer,
            loss_fn=tiny_loss,
            config={"phases": EVERY_STEP},
            plugins=[stranger(Far, claims={"predictor"}), *(["int8"] if int8 else [])],
        ) as trainer:
            jumps = [trainer.step(batch).jump for batch in task.batches]
        return [jump.accepted for jump in jumps if jump], task.model.state_dict()

    accepted, weights = trained(int8=True)
    assert accepted
    assert not any(accepted)
    assert same_tensors(trained(int8=False)[1], weights)


@attrs.define(eq=False)
class Marked(Plugin[NoConfig]):
    """Marks the probes, innermost."""

    @hookimpl
    def around_forward(self, run: Run) -> Callable[..., Any]:
        def forward(following: Callable[..., Any], *, moment: str, **arguments: Any) -> Any:
            if moment == "probe":
                Allocations.mark("probe")
            return following(moment=moment, **arguments)

        return forward


MARKED = PluginSpec(name="marked", load=f"{__name__}:Marked", summary="Marks.", after={"int8"})


@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        (torch.float32, {}),
        (torch.float32, {"granularity": "block", "block": 16, "symmetric": False}),
        (torch.bfloat16, {}),
        (torch.bfloat16, {"granularity": "block", "block": 64}),
        (torch.bfloat16, {"granularity": "tensor"}),
    ],
    ids=str,
)
def test_the_device_holds_40_percent_less_of_the_quantized_weights(
    dtype: torch.dtype, settings: dict[str, Any]
) -> None:
    width = 256

    def held(*, int8: bool) -> int:
        with counted() as allocations:
            torch.manual_seed(0)
            layers = [nn.Linear(width, width, bias=False) for _ in range(5)]
            model = nn.Sequential(*layers).to(dtype)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
            batch = torch.randn(2, width, dtype=dtype)
            with HybridTrainer(
                model,
                optimizer,
                loss_fn=lambda model, batch: model(batch).square().mean(),
                config={"phases": EVERY_STEP, "plugins": {"int8": settings} if int8 else {}},
                plugins=[STEADY_PREDICTOR, stranger(Marked, "marked", after={"int8"})],
            ) as trainer:
                for _ in range(3):
                    trainer.step(batch)
        return allocations.at_marks()["probe"][-1]

    of_weights = 4 * width * width * dtype.itemsize  # the last one is the head
    saved = held(int8=False) - held(int8=True)
    assert saved > 0.4 * of_weights


def test_nothing_is_int8_while_training_and_everything_is_in_a_probe() -> None:
    seen: dict[str, set[bool]] = {}

    def forward(self: Any, run: Run) -> Callable[..., Any]:
        def looked(following: Callable[..., Any], *, model: Any, moment: str, **rest: Any) -> Any:
            kinds = seen.setdefault(moment, set())
            kinds.update(isinstance(p, Int8Weight) for p in model.blocks[0].up._parameters.values())
            return following(model=model, moment=moment, **rest)

        return looked

    looker = stranger(plugin_with(around_forward=hookimpl(forward)), "looker", after={"int8"})
    run({}, looker)
    assert {"train": {False}, "probe": {True, False}} == seen  # of the full probe, and the bias


def test_the_gap_and_the_error_are_metrics_and_a_large_gap_raises_precision() -> None:
    def plugin(limit: float | None) -> dict[str, float]:
        task = tiny_task(steps=12)
        settings = {"granularity": "tensor", "measure_every": 1, "gap_limit": limit}
        with HybridTrainer(
            task.model,
            task.optimizer,
            loss_fn=tiny_loss,
            config={"phases": EVERY_STEP, "plugins": {"int8": settings}},
            plugins=[STEADY_PREDICTOR],
        ) as trainer:
            for batch in task.batches:
                trainer.step(batch)
            return dict(trainer.hooks.plugins["int8"].collect_metrics())

    loose, strict = plugin(None), plugin(1e-9)
    assert 0 < abs(loose["loss_gap"]) < 0.1
    assert 1e-4 < loose["quantization_error"] < 0.1
    assert 10.0 == loose["int8_weights"]
    assert strict["int8_weights"] < 4.0


def test_an_error_in_a_probe_leaves_a_run_that_goes_on_bitwise() -> None:
    class Failing(Plugin[NoConfig]):
        left = 3

        @hookimpl
        def around_forward(self, run: Run) -> Callable[..., Any]:
            def forward(following: Callable[..., Any], *, moment: str, **rest: Any) -> Any:
                if moment == "probe":
                    Failing.left -= 1
                    if Failing.left == 0:
                        raise MemoryError
                return following(moment=moment, **rest)

            return forward

    def trained(*names: str) -> dict[str, torch.Tensor]:
        Failing.left = 3
        task = tiny_task(steps=8)
        failing = stranger(Failing, "failing", after={"int8"})
        plugins = {name: {"measure_every": 0} for name in names}
        with HybridTrainer(
            task.model,
            task.optimizer,
            loss_fn=tiny_loss,
            config={"phases": EVERY_STEP, "plugins": plugins},
            plugins=[STEADY_PREDICTOR, failing],
        ) as trainer:
            for batch in task.batches:
                try:
                    trainer.step(batch)
                except MemoryError:
                    assert all(
                        map(torch.isfinite, map(torch.sum, task.model.state_dict().values()))
                    )
        return task.model.state_dict()

    assert same_tensors(trained(), trained("int8"))


def test_a_nan_weight_is_refused_as_it_is_in_full() -> None:
    task = tiny_task(steps=3)
    with HybridTrainer(
        task.model,
        task.optimizer,
        loss_fn=tiny_loss,
        config={"phases": EVERY_STEP, "train": {"check_finite": False}, "plugins": {"int8": {}}},
        plugins=[STEADY_PREDICTOR],
    ) as trainer:
        trainer.step(task.batches[0])
        with torch.no_grad():
            task.model.blocks[1].up.weight[2, 3] = torch.nan
        jump = trainer.step(task.batches[1], phase="predict").jump
        assert not jump.accepted
        assert math.isnan(jump.loss_before)
