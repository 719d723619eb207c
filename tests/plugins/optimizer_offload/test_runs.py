"""Whole runs: phases that change at any step, errors on the way, company, memory."""

from __future__ import annotations

import gc
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import (
    CYCLE,
    digest_after,
    plugin_with,
    same_tensors,
    stranger,
    tensors_of,
    tiny_trainer,
)

from neaptide import ConfigError, HybridTrainer, Update, hookimpl
from neaptide.memory import nested_tensors
from neaptide.offload.host_memory import lies_in_slab, slab_bytes
from neaptide.testing import LAWS, check_plugin
from neaptide.testing.tiny import STEADY_PREDICTOR, tiny_task
from neaptide_plugins.optimizer_offload import SPEC
from neaptide_plugins.optimizer_offload.away import Away

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 14
STRATEGIES = ["cpu", "pinned", "none", "compress", "drop"]
LOSSY = ("compress", "drop")
CHANGES_NOTHING = [
    "manifest-is-light",
    "config-round-trips",
    "detach-leaves-no-trace",
    "resume-is-exact",
    "estimate-is-measured",
    "estimate-is-allocated",
]
"""Laws that a strategy which changes training keeps, too."""


def config(strategy: str = "cpu", others: Any = None, **settings: Any) -> dict[str, Any]:
    own = {"strategy": strategy, **settings}
    return {
        "phases": CYCLE,
        "train": {"clip_norm": 1.0},
        "plugins": {"optimizer-offload": own, **(others or {})},
    }


def plain(others: Any = None) -> dict[str, Any]:
    return {"phases": CYCLE, "train": {"clip_norm": 1.0}, "plugins": others or {}}


def on_host(trainer: Any) -> list[bool]:
    """Return, for each large tensor of the state, whether it is in host memory."""
    tensors = nested_tensors(dict(trainer.optimizer.state))
    return [lies_in_slab(tensor) for tensor in tensors if tensor.nbytes >= 1024]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", LOSSY)
def test_lossy_strategies_keep_every_other_law(strategy: str) -> None:
    check_plugin(SPEC, {"strategy": strategy}, laws=CHANGES_NOTHING)


@pytest.mark.slow
def test_pinned_keeps_the_contract() -> None:
    check_plugin(SPEC, {"strategy": "pinned"})


@pytest.mark.slow
def test_without_an_early_return_it_keeps_the_contract() -> None:
    # Of two moments that hold as much the law on allocations takes the one with less on the device.
    laws = [law for law in LAWS if law != "estimate-is-allocated"]
    check_plugin(SPEC, {"async_restore": False}, laws=laws)


@pytest.mark.parametrize("strategy", ["cpu", "pinned"])
@pytest.mark.parametrize("seed", range(3))
def test_a_phase_may_change_at_every_step(strategy: str, seed: int) -> None:
    def run(settings: dict[str, Any], *plugins: Any) -> str:
        trainer, batches = tiny_trainer(settings, [STEADY_PREDICTOR, *plugins])
        chance = random.Random(seed)
        with trainer:
            for batch in batches[:STEPS]:
                name = chance.choice(["warmup", "full", "predict", "predict", "correct", None])
                trainer.step(batch, phase=name)
            digest: str = trainer.digest()
            return digest

    others = {"gradient-accumulation": {"steps": 2 + seed, "across_steps": True}}
    plugins = ["gradient-accumulation"]
    expected = run(plain(others), *plugins)
    assert expected == run(config(strategy, others), *plugins, SPEC)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_resumes_around_every_predict(tmp_path: Path, strategy: str) -> None:
    def run(save: int | None = None, load: int | None = None) -> str:
        trainer, batches = tiny_trainer(config(strategy), [STEADY_PREDICTOR, SPEC])
        with trainer:
            if load is not None:
                trainer.load(tmp_path / str(load))
            for number, batch in enumerate(batches[load or 0 : STEPS], start=(load or 0) + 1):
                trainer.step(batch)
                if number == save:
                    trainer.save(tmp_path / str(save))
            digest: str = trainer.digest()
            return digest

    whole = run()
    for step in (6, 7):
        assert whole == run(save=step)
        assert whole == run(load=step)


def in_predict(action: Any) -> Any:
    """Return a predictor that does something first."""

    def propose_update(self: Any, store: Any) -> Update:
        action(store)

        def delta(span: Any) -> torch.Tensor:
            with store.loan(span, "read") as weight:
                return weight * -0.001

        return Update(3, delta)

    cls = plugin_with(propose_update=hookimpl(propose_update))
    return stranger(cls, claims={"predictor"}, numerics="changes-training")


ASKS: dict[str, Any] = {
    "reads the state": lambda store: [t.sum() for t in nested_tensors(dict(store.optimizer.state))],
    "asks for state_dict": lambda store: store.optimizer.state_dict(),
    "loads it": lambda store: store.load_optimizer_state_dict(store.optimizer_state_dict()),
    "takes a snapshot": lambda store: store.restore(store.snapshot(optimizer=True)),
    "halves moments": lambda store: [
        state["exp_avg"].mul_(0.5) for state in store.optimizer.state.values()
    ],
    "steps by itself": lambda store: store.optimizer.step(),
    "takes state away": lambda store: store.optimizer.state.clear(),
    "replaces it": lambda store: [
        state.update(exp_avg=torch.zeros_like(state["exp_avg"]))
        for state in store.optimizer.state.values()
    ],
}


@pytest.mark.parametrize("what", ASKS)
def test_anybody_may_ask_for_the_state_in_predict(what: str) -> None:
    predictor = in_predict(ASKS[what])
    expected = digest_after(STEPS, plain(), [predictor])
    assert expected == digest_after(STEPS, config(), [predictor, SPEC])


@pytest.mark.parametrize("strategy", ["compress", "drop"])
@pytest.mark.parametrize("what", ["asks for state_dict", "loads it", "takes a snapshot"])
def test_lossy_state_comes_back_for_who_asks(what: str, strategy: str) -> None:
    states = []

    def asked(store: Any) -> None:
        ASKS[what](store)
        states.append([t.numel() for t in nested_tensors(dict(store.optimizer.state))])

    digest_after(STEPS, config(strategy), [in_predict(asked), SPEC])
    assert states
    assert all(0 not in sizes for sizes in states)


@pytest.mark.parametrize("strategy", ["cpu", "pinned"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError, RuntimeError])
def test_it_goes_on_after_an_error_in_predict(error: type[BaseException], strategy: str) -> None:
    def run(settings: dict[str, Any], *plugins: Any) -> str:
        trainer, batches = tiny_trainer(settings, [STEADY_PREDICTOR, *plugins])
        probes = []

        def fails(module: Any, *_: Any) -> None:
            if not module.training:
                probes.append(on_host(trainer))
                if len(probes) in (1, 2):
                    raise error

        hook = trainer.model.register_forward_hook(fails)
        with trainer:
            for batch in batches[: 2 * STEPS]:
                try:
                    trainer.step(batch)
                except error:
                    assert bool(plugins) == any(on_host(trainer))
            digest: str = trainer.digest()
            hook.remove()
        assert len(probes) > 2
        assert bool(plugins) == any(map(any, probes))
        return digest

    assert run(plain()) == run(config(strategy), SPEC)


def test_what_an_error_leaves_away_is_back_when_the_run_ends() -> None:
    trainer, batches = tiny_trainer(config(), [STEADY_PREDICTOR, SPEC])

    def fails(module: Any, *_: Any) -> None:
        if not module.training:
            raise KeyboardInterrupt

    def train() -> None:
        with trainer:
            for batch in batches[:STEPS]:
                trainer.step(batch)

    trainer.model.register_forward_hook(fails)
    with pytest.raises(KeyboardInterrupt):
        train()
    assert on_host(trainer)
    assert not any(on_host(trainer))
    assert 0 == slab_bytes()
    trainer.optimizer.step()
    assert {} == dict(trainer.optimizer._optimizer_step_pre_hooks)


def test_no_room_for_an_early_return_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest_after(STEPS, plain(), [STEADY_PREDICTOR])
    begin, calls = Away.begin, []

    def no_room(self: Away) -> None:
        calls.append(self)
        if len(calls) % 2:
            raise torch.OutOfMemoryError
        begin(self)

    monkeypatch.setattr(Away, "begin", no_room)
    assert expected == digest_after(STEPS, config(), [STEADY_PREDICTOR, SPEC])
    assert len(calls) >= 2


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


class Marked:
    """Stands for activations."""

    alive = 0

    def __init__(self) -> None:
        Marked.alive += 1

    def __del__(self) -> None:
        Marked.alive -= 1


def test_what_only_a_cycle_keeps_is_freed_for_predict() -> None:
    def run(settings: dict[str, Any]) -> list[int]:
        trainer, batches = tiny_trainer(settings, [STEADY_PREDICTOR, SPEC])
        seen = []

        def keeps(module: Any, *_: Any) -> None:
            if module.training:
                cycle: dict[str, Any] = {"activations": Marked()}
                cycle["self"] = cycle
            else:
                seen.append(Marked.alive)

        trainer.model.register_forward_hook(keeps)
        gc.disable()
        try:
            with trainer:
                for batch in batches[:8]:
                    trainer.step(batch)
        finally:
            gc.enable()
            gc.collect()
        return seen

    assert 0 == max(run(config()))
    assert 0 < min(run(config(discard_activations=False)))
