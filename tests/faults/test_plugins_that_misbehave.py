"""Plugins that answer nonsense, re-enter or change what is not theirs; sets that cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer
from torch import nn

from neaptide import ConfigError, HybridTrainer, NeaptideError, PluginError, PluginSpec, hookimpl
from neaptide.hooks import hookspecs
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AROUND = sorted(name for name in vars(hookspecs) if name.startswith("around_"))
NOTIFICATIONS = ["before_forward", "after_forward", "after_backward", "after_step"]
IN_A_STEP = [
    *NOTIFICATIONS,
    "on_phase_enter",
    "select_phase",
    "plan_micro_batches",
    "propose_update",
]
NONSENSE: list[Any] = [object(), "x", float("nan"), -1, b"", ValueError("no"), torch.ones(2), type]


def implementing(hook: str, body: Callable[[], Any]) -> type[Any]:
    def implementation(self: Any) -> Any:
        return body()

    implementation.__name__ = hook
    return plugin_with(**{hook: hookimpl(implementation)})


def run(plugins: list[Any], directory: Path) -> HybridTrainer:
    config = {
        "phases": CYCLE,
        "run": {"dir": str(directory), "log_every": 1},
        "train": {"steps": 9},
    }
    trainer, batches = tiny_trainer(config, plugins)
    with trainer:
        for batch in batches[:9]:
            trainer.step(batch)
        trainer.evaluate(batches[:1])
        trainer.save(directory / "saved")
        trainer.estimate_memory()
    return trainer


@pytest.mark.parametrize(
    "hook", [*IN_A_STEP, "on_phase_exit", "on_run_start", "estimate_memory", "collect_metrics"]
)
def test_nonsense_of_every_kind_is_refused_by_name(tmp_path: Path, hook: str) -> None:
    claims = {"claims": {"predictor"}} if hook == "propose_update" else {}
    others = [] if claims else [STEADY_PREDICTOR]
    for number, value in enumerate(NONSENSE):
        cls = implementing(hook, lambda value=value: value)  # type: ignore[misc]  # mypy cannot infer a default's type
        with pytest.raises(PluginError, match=rf"plugin 'broken' must return .* from '{hook}'"):
            run([stranger(cls, "broken", **claims), *others], tmp_path / f"{number}")


@pytest.mark.parametrize("hook", AROUND)
def test_nonsense_of_a_middleware_is_refused_by_name(tmp_path: Path, hook: str) -> None:
    for number, value in enumerate(NONSENSE):
        if hook == "around_evaluate" and isinstance(value, float):
            continue

        def middleware(following: Any, value: Any = value, **arguments: Any) -> Any:
            following(**arguments)
            return value

        cls = implementing(hook, lambda made=middleware: made)  # type: ignore[misc]  # as above
        with pytest.raises(PluginError, match=rf"plugin 'broken' must return .* from '{hook}'"):
            run([stranger(cls, "broken"), STEADY_PREDICTOR], tmp_path / f"{number}")


METHODS: dict[str, Callable[[HybridTrainer, Any], Any]] = {
    "step": lambda trainer, batch: trainer.step(batch),
    "load": lambda trainer, batch: trainer.load("anywhere"),
    "close": lambda trainer, batch: trainer.close(),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("hook", [*IN_A_STEP, "around_forward", "around_optimizer_step"])
def test_a_step_inside_a_step_is_refused(hook: str, method: str) -> None:
    inside: list[Any] = []

    def body() -> None:
        trainer, batch = inside
        METHODS[method](trainer, batch)

    def wrapped() -> Any:
        def middleware(following: Any, **arguments: Any) -> Any:
            body()
            return following(**arguments)

        return middleware

    cls = implementing(hook, wrapped if hook.startswith("around_") else body)
    claims = {"claims": {"predictor"}} if hook == "propose_update" else {}
    spec = stranger(cls, "broken", **claims)
    others = [] if claims else [STEADY_PREDICTOR]
    trainer, batches = tiny_trainer({"phases": CYCLE}, [spec, *others])
    inside[:] = [trainer, batches[0]]
    steps = (trainer.step(batch) for batch in batches)
    with trainer, pytest.raises(RuntimeError) as caught:
        list(steps)
    assert (
        f"trainer.{method} was called inside trainer.step, by a hook or loss_fn; call it between "
        "steps"
    ) == str(caught.value)
    assert f"raised by plugin 'broken' in hook {hook!r}" in caught.value.__notes__


def test_a_loss_function_cannot_step_either() -> None:
    task = tiny_task()
    with HybridTrainer(
        task.model, task.optimizer, loss_fn=lambda model, batch: trainer.step(batch)
    ) as trainer:
        with pytest.raises(RuntimeError, match="called inside"):
            trainer.step(task.batches[0])
        with pytest.raises(RuntimeError, match="called inside"):
            trainer.step(task.batches[0])


@pytest.mark.parametrize("hook", NOTIFICATIONS)
def test_a_notification_that_changes_weights_shows_in_the_digest(hook: str) -> None:
    """Nobody watches every weight; what is promised is that the change cannot hide."""

    def weights(plugins: list[Any]) -> tuple[str, dict[str, torch.Tensor]]:
        trainer, batches = tiny_trainer(plugins=plugins)
        with trainer:
            for batch in batches[:3]:
                trainer.step(batch)
            return trainer.digest(), tensors_of(trainer.model)

    def meddling() -> PluginSpec:
        @hookimpl
        def on_run_start(self: Any, model: Any) -> None:
            self.model = model

        def change(self: Any) -> None:
            with torch.no_grad():
                self.model.head.bias.add_(1e-3)

        change.__name__ = hook
        return stranger(plugin_with(on_run_start=on_run_start, **{hook: hookimpl(change)}))

    (honest, expected), (meddled, found) = weights([]), weights([meddling()])
    assert honest != meddled
    assert not same_tensors(expected, found)


def spec(name: str, **manifest: Any) -> PluginSpec:
    return PluginSpec(name=name, load="nowhere:Nothing", **manifest)


SETS: dict[str, tuple[dict[str, Any], list[Any], str]] = {
    "an unknown key": ({"train": {"stepz": 1}}, [], r"stepz.*did you mean 'steps'"),
    "an unknown table": ({"trian": {}}, [], "trian.*did you mean 'train'"),
    "an unknown plugin": ({"plugins": {"emma": {}}}, [], "emma.*did you mean 'ema'"),
    "a plugin's unknown key": ({"plugins": {"ema": {"deacy": 0.5}}}, [], "did you mean 'decay'"),
    "a plugin's bad value": ({"plugins": {"ema": {"decay": 7.0}}}, [], r"plugins\.ema\.decay"),
    "a plugin nobody has": ({}, ["emma"], "did you mean 'ema'"),
    "a duplicate": ({}, [spec("a"), spec("a", version=2)], "two given manifests have the name 'a'"),
    "a cycle": ({}, [spec("a", before={"b"}), spec("b", before={"a"})], "circular: 'a'"),
    "itself first": ({}, [spec("a", after={"a"})], "circular: 'a'"),
    "a conflict": ({}, [spec("a", conflicts={"b"}), spec("b")], "'a' cannot run beside 'b'"),
    "one claim twice": ({}, [spec("a", claims={"x"}), spec("b", claims={"x"})], "both claim 'x'"),
    "a missing capability": ({}, [spec("a", requires={"teleport"})], "'a' requires 'teleport'"),
    "a class nobody has": ({}, [spec("a")], "nowhere:Nothing"),
    "confidence without dynamics": (
        {"phases": {"predict": {"confidence": 0.5}}},
        [],
        "confidence needs a dynamics model",
    ),
    "an optimizer nobody has": ({"optimizer": {"name": "adamv"}}, [], "did you mean 'adam'"),
    "an optimizer's bad setting": (
        {"optimizer": {"name": "adamw", "options": {"betas": 3}}},
        [],
        r"AdamW refused betas = .* @ optimizer\.options\.betas",
    ),
}


@pytest.mark.parametrize("what", SETS)
def test_what_cannot_run_fails_before_the_model_is_made(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, plugins, expected = SETS[what]
    made: list[str] = []

    def factory(**options: Any) -> nn.Module:
        made.append("model")
        return nn.Linear(2, 2)

    import support

    monkeypatch.setattr(support, "recording_factory", factory, raising=False)
    whole = {"model": {"name": "support:recording_factory"}, **config}
    with pytest.raises((ConfigError, PluginError), match=expected) as caught:
        HybridTrainer.from_config(whole, plugins=plugins)
    assert isinstance(caught.value, NeaptideError)
    assert [] == made
    task = tiny_task()
    before = tensors_of(task.model)
    if "optimizer" not in what:
        with pytest.raises((ConfigError, PluginError), match=expected):
            HybridTrainer(
                task.model, task.optimizer, loss_fn=tiny_loss, config=config, plugins=plugins
            )
    assert same_tensors(before, tensors_of(task.model))


def test_the_recording_factory_is_called_where_nothing_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import support

    made: list[str] = []

    def factory(**options: Any) -> nn.Module:
        made.append("model")
        return nn.Linear(2, 2)

    monkeypatch.setattr(support, "recording_factory", factory, raising=False)
    with HybridTrainer.from_config({"model": {"name": "support:recording_factory"}}):
        assert ["model"] == made
