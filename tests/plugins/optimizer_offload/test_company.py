"""Beside other plugins, and with optimizers of strangers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from offloaded import STEPS, config, on_host, plain
from support import (
    digest_after,
    same_tensors,
    tensors_of,
    tiny_trainer,
)

from neaptide import (
    ConfigError,
    HybridTrainer,
)
from neaptide_plugins.adam8bit.optimizer import Adam8bit
from neaptide_plugins.lion8bit.optimizer import Lion8bit
from neaptide_plugins.optimizer_offload import SPEC
from neaptide_toolkit.offload import lies_in_slab
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss, tiny_task

if TYPE_CHECKING:
    from pathlib import Path


def test_moments_leave_a_run_in_fp16_with_a_loss_scale() -> None:
    others = {"mixed-precision": {"preset": "aggressive", "full": "fp16", "correct": "fp16"}}
    plugins = [STEADY_PREDICTOR, "mixed-precision"]
    expected = digest_after(STEPS, plain(others), plugins)
    assert expected == digest_after(STEPS, config("cpu", others), [*plugins, SPEC])


STREAMS: list[dict[str, Any]] = [
    {"optimizer_on": "cpu"},
    {"optimizer_on": "device"},
    {"optimizer_on": "device", "update": "in_backward", "clip": "lagged"},
]


@pytest.mark.parametrize("streams", STREAMS, ids=str)
def test_beside_layer_streaming(streams: dict[str, Any]) -> None:
    others = {"layer-streaming": {"max_active_layers": 3, **streams}}
    plugins = [STEADY_PREDICTOR, "layer-streaming"]

    def run(settings: dict[str, Any], *more: Any) -> dict[str, torch.Tensor]:
        trainer, batches = tiny_trainer(settings, [*plugins, *more])
        with trainer:
            for batch in batches[:STEPS]:
                trainer.step(batch)
        return tensors_of(trainer.model)

    assert same_tensors(run(plain(others)), run(config("cpu", others), SPEC))


@pytest.mark.parametrize(
    "company", ["ema", "profiler", "predictor-drift", "activation-checkpointing", "int8"]
)
def test_beside_other_plugins(company: str) -> None:
    settings = {
        "predictor-drift": {"min_window": 4, "sample_every": 1},
        "activation-checkpointing": {"interval": 2},
    }
    others = {company: settings.get(company, {})}
    plugins = [company] if company == "predictor-drift" else [STEADY_PREDICTOR, company]

    def run(settings: dict[str, Any], *more: Any) -> dict[str, torch.Tensor]:
        trainer, batches = tiny_trainer(settings, [*plugins, *more])
        with trainer:
            for batch in batches[:STEPS]:
                trainer.step(batch)
        return tensors_of(trainer.model)

    assert same_tensors(run(plain(others)), run(config("cpu", others), SPEC))


def test_an_optimizer_that_cannot_begin_anew_is_refused_in_a_line() -> None:
    class Counting(torch.optim.SGD):
        taken = 0

        def step(self, closure: Any = None) -> Any:  # type: ignore[override]  # as strangers do
            self.taken += 1
            return super().step(closure)

    task = tiny_task()
    optimizer = Counting(task.model.parameters(), lr=0.1)
    with pytest.raises(ConfigError) as refused:
        HybridTrainer(task.model, optimizer, config=config("drop"), plugins=[SPEC])
    (line,) = str(refused.value).splitlines()
    assert "counts steps in its attribute 'taken'" in line
    assert line.endswith("@ plugins.optimizer-offload.strategy")


class Odd(torch.optim.Optimizer):
    """Momentum with a state as strangers keep it."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})
        self.state["all"] = {"norm": torch.zeros(600), "names": ["a"]}  # type: ignore[index]  # as strangers do

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # as strangers do
        parameters = [each for group in self.param_groups for each in group["params"]]
        shared = self.state["all"]  # type: ignore[index]  # as above
        for parameter in parameters:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                flat = parameter.new_zeros(2, *parameter.shape)
                state.update(
                    pair=(flat[0], [flat[1], None]),
                    box=SimpleNamespace(last=torch.zeros_like(parameter), why=None),
                    again=flat[0],
                    count=0,
                    words="fine",
                    shared=shared["norm"],
                    missing=None,
                )
            first, (second, _) = state["pair"]
            first.lerp_(parameter.grad, 0.1)
            second.lerp_(parameter.grad.square(), 0.01)
            state["box"].last.copy_(parameter.grad)
            state["count"] += 1
            shared["norm"][0] += parameter.grad.norm().to(shared["norm"].device)
            direction = state["again"] / (second.sqrt() + 1e-3)
            parameter.sub_(0.05 * (direction + 0.1 * state["box"].last))


@pytest.mark.parametrize("strategy", ["cpu", "pinned"])
def test_a_strangers_odd_state(strategy: str) -> None:
    def run(settings: dict[str, Any], *plugins: Any) -> tuple[dict[str, torch.Tensor], list[bool]]:
        task = tiny_task(width=32)
        trained = [each for each in task.model.parameters() if each.requires_grad]
        trainer = HybridTrainer(
            task.model,
            Odd(trained),
            loss_fn=tiny_loss,
            config=settings,
            plugins=[STEADY_PREDICTOR, *plugins],
        )
        seen = []

        def look(module: Any, *_: Any) -> None:
            if not module.training:
                state = trainer.optimizer.state
                boxes = [state[each]["box"].last for each in trained if each.nbytes >= 1024]
                pairs = [state[each]["pair"][0] for each in trained if each.nbytes >= 1024]
                seen.extend(map(lies_in_slab, [*boxes, *pairs]))
                assert not lies_in_slab(state["all"]["norm"])  # type: ignore[index]  # as above

        task.model.register_forward_hook(look)
        with trainer:
            for batch in task.batches[:STEPS]:
                trainer.step(batch)
        return tensors_of(trainer.model), seen

    expected, _ = run(plain())
    weights, seen = run(config(strategy), SPEC)
    assert same_tensors(expected, weights)
    assert seen
    assert all(seen)


@pytest.mark.parametrize("make", [Adam8bit, Lion8bit])
def test_8_bit_state(make: Any) -> None:
    def run(settings: dict[str, Any], *plugins: Any) -> str:
        task = tiny_task(width=64)
        trained = [each for each in task.model.parameters() if each.requires_grad]
        trainer = HybridTrainer(
            task.model,
            make(trained, lr=1e-3),
            loss_fn=tiny_loss,
            config=settings,
            plugins=[STEADY_PREDICTOR, *plugins],
        )
        seen = []
        task.model.register_forward_hook(
            lambda module, *_: None if module.training else seen.append(any(on_host(trainer)))
        )
        with trainer:
            for batch in task.batches[:STEPS]:
                trainer.step(batch)
            assert bool(plugins) == any(seen)
            digest: str = trainer.digest()
            return digest

    assert run(plain()) == run(config(), SPEC)


class Hoarder(torch.optim.Adam):
    """Keeps another tensor in the memory of each moment."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.hoard = [state["exp_avg"].detach() for state in self.state.values()]
        return loss


def test_what_stays_is_told_once(tmp_path: Path) -> None:
    task = tiny_task(width=32)
    settings = {**config(), "run": {"dir": str(tmp_path / "run")}}
    trainer = HybridTrainer(
        task.model,
        Hoarder(task.model.parameters()),
        loss_fn=tiny_loss,
        config=settings,
        plugins=[STEADY_PREDICTOR, SPEC],
    )
    with trainer:
        for batch in task.batches[:STEPS]:
            trainer.step(batch)
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    told = [line for line in map(json.loads, lines) if line["event"] == "optimizer-offload.stays"]
    assert ["used by other tensors, too"] == [line["reason"] for line in told]
    assert all(line["bytes"] >= 1024 for line in told)
