"""Whole runs: phases that change at any step, resuming, who asks for the state, errors."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from offloaded import STEPS, config, on_host, plain
from support import (
    digest_after,
    plugin_with,
    stranger,
    tiny_trainer,
)

from neaptide import (
    Update,
    hookimpl,
)
from neaptide_plugins.optimizer_offload import SPEC
from neaptide_plugins.optimizer_offload.host_state import HostState
from neaptide_toolkit.offload import slab_bytes
from neaptide_toolkit.tensors import nested_tensors
from neaptide_toolkit.testing import LAWS, check_plugin
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

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
        rng = random.Random(seed)
        with trainer:
            for batch in batches[:STEPS]:
                name = rng.choice(["warmup", "full", "predict", "predict", "correct", None])
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
    "loads it": lambda store: store.load_optimizer_state_dict(store.optimizer.state_dict()),
    "takes a snapshot": lambda store: store.snapshot(optimizer=True),
    "halves moments": lambda store: [
        state["exp_avg"].mul_(0.5) for state in store.optimizer.state.values()
    ],
    "steps by itself": lambda store: store.optimizer.step(),
    "takes state away": lambda store: store.optimizer.state.clear(),
    "replaces it": lambda store: [
        state.update(exp_avg=torch.zeros_like(parameter))
        for parameter, state in store.optimizer.state.items()
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
    before = slab_bytes()
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
    assert slab_bytes() <= before
    trainer.optimizer.step()
    assert {} == dict(trainer.optimizer._optimizer_step_pre_hooks)


def test_no_room_for_an_early_return_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest_after(STEPS, plain(), [STEADY_PREDICTOR])
    begin, calls = HostState.begin, []

    def no_room(self: HostState) -> None:
        calls.append(self)
        if len(calls) % 2:
            raise torch.OutOfMemoryError
        begin(self)

    monkeypatch.setattr(HostState, "begin", no_room)
    assert expected == digest_after(STEPS, config(), [STEADY_PREDICTOR, SPEC])
    assert len(calls) >= 2


@pytest.mark.parametrize("strategy", ["cpu", "compress", "drop"])
def test_it_resumes_from_what_an_interrupted_predict_has_left(
    tmp_path: Path, strategy: str
) -> None:
    def run(*, resume: bool) -> str:
        trainer, batches = tiny_trainer(config(strategy), [STEADY_PREDICTOR, SPEC])

        def fails(module: Any, *_: Any) -> None:
            if not module.training:
                hook.remove()
                raise KeyboardInterrupt

        hook = trainer.model.register_forward_hook(fails)
        for number, batch in enumerate(batches[:STEPS]):
            try:
                trainer.step(batch)
            except KeyboardInterrupt:
                if resume:
                    trainer.save(tmp_path / "saved")
                    trainer.close()
                    trainer, _ = tiny_trainer(config(strategy), [STEADY_PREDICTOR, SPEC])
                    trainer.load(tmp_path / "saved")
                trainer.step(batches[number])
        with trainer:
            digest: str = trainer.digest()
            return digest

    assert run(resume=False) == run(resume=True)


def test_the_first_of_two_errors_at_the_end_is_told_with_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(text: str) -> Any:
        def method(_: HostState) -> None:
            raise OSError(text)

        return method

    trainer, _ = tiny_trainer(config("cpu"), [SPEC])
    plugin = trainer.hooks.plugins["optimizer-offload"]
    with trainer, monkeypatch.context() as patched:
        patched.setattr(HostState, "finish", fails("the copy failed"))
        patched.setattr(HostState, "close", fails("the memory is gone"))
        with pytest.raises(OSError, match="the copy failed") as caught:
            plugin.on_run_end()
    assert caught.value.__notes__ == ["after this error: OSError: the memory is gone"]
