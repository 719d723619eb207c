"""Anything raised in any hook, by a plugin at any place, at its first call and at later ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from bombs import DYNAMICS, Bomb, bombed
from support import CYCLE, plugin_with, some, stranger

from neaptide import HybridTrainer, hookimpl
from neaptide.checkpoint import digest, verify
from neaptide.hooks import hookspecs
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from neaptide import PluginSpec

HOOKS = sorted(name for name, value in vars(hookspecs).items() if hasattr(value, "neaptide_spec"))
OUTSIDE = {"build_model", "build_data", "diagnose"}
"""Asked by runs from a config, and by the doctor; tests/core/hooks/test_manager.py has them."""
ASSEMBLY = {
    "configure_optimizer",
    "convert_model",
    "on_run_start",
    "provide_parameters",
    "register_kernels",
}
AROUND = [hook for hook in HOOKS if hook.startswith("around_")]
OBSERVABLE = [
    hook
    for hook in HOOKS
    if not getattr(hookspecs, hook).neaptide_spec["firstresult"] and hook not in {*AROUND, *OUTSIDE}
]
STEPS = 9


class BoomError(Exception):
    """A stranger's own error."""


class StopError(BaseException):
    """What is no Exception and no KeyboardInterrupt either."""


ERRORS = (BoomError, MemoryError, KeyboardInterrupt, StopError)


def witness(name: str, ended: list[Any]) -> PluginSpec:
    """Return a plugin that patches the model, undoes that, and writes down that it did."""

    @hookimpl
    def convert_model(self: Any, model: Any) -> None:
        self.model, before = model, model.forward
        self.before = vars(model).get("forward")
        model.forward = partial(before)

    @hookimpl
    def on_run_end(self: Any, error: BaseException | None) -> None:
        ended.append((name, error))
        if hasattr(self, "before"):
            vars(self.model).pop("forward")
            if self.before is not None:
                self.model.forward = self.before

    members = {"convert_model": convert_model, "on_run_end": on_run_end}
    return stranger(plugin_with(**members), name)


def weights(model: torch.nn.Module) -> str:
    return digest(dict(model.named_parameters()))


def spying(seen: set[str]) -> PluginSpec:
    """Return a plugin that notes the weights where a step may leave them: between updates."""

    @hookimpl
    def before_forward(self: Any, model: Any) -> None:
        self.model = model
        seen.add(weights(model))

    @hookimpl
    def after_step(self: Any) -> None:
        seen.add(weights(self.model))

    return stranger(plugin_with(before_forward=before_forward, after_step=after_step), "spy")


class Ran:
    """What became of a run whose caller goes on after every error."""

    def __init__(self) -> None:
        self.task = tiny_task()
        self.errors: list[BaseException] = []
        self.weights: list[str] = []
        self.updates = 0

    def attempt(self, call: Any, *given: Any) -> Any:
        try:
            return call(*given)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at later
            self.errors.append(error)
            self.weights.append(weights(self.task.model))
            return None


def run(directory: Path, plugins: list[Any]) -> Ran:
    """Call every hook there is, and go on after each error as a notebook would."""
    config = {
        "phases": CYCLE,
        "run": {"dir": str(directory), "log_every": 1},
        "train": {"steps": STEPS, "clip_norm": 1.0},
    }
    ran = Ran()

    def assemble() -> HybridTrainer:
        return HybridTrainer(
            ran.task.model, None, loss_fn=tiny_loss, config=config, plugins=plugins
        )

    trainer = ran.attempt(assemble)
    if trainer is None:
        return ran
    for batch in ran.task.batches[:STEPS]:
        ran.attempt(trainer.step, batch)
    for _ in range(2):
        ran.attempt(trainer.evaluate, ran.task.batches[:2])
        ran.attempt(trainer.save, directory / "saved")
        ran.attempt(trainer.estimate_memory)
    ran.updates = trainer.state.step
    ran.attempt(trainer.close)
    trainer.close()  # is done, whatever was raised
    return ran


def places(spec: PluginSpec, ended: list[Any]) -> dict[str, list[Any]]:
    one, two = witness("one", ended), witness("two", ended)
    return {"first": [spec, one, two], "middle": [one, spec, two], "last": [one, two, spec]}


Sound = Callable[[str], set[str]]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """Give every state of the weights between updates, in a run of the same plugins undisturbed."""

    @cache
    def states(decides: str) -> set[str]:
        seen: set[str] = set()
        quiet = [bombed(decides, Bomb(0, BoomError()))] if decides else []
        predictor = [] if decides == "propose_update" else [STEADY_PREDICTOR]
        run(tmp_path_factory.mktemp("sound"), [spying(seen), *quiet, *predictor])
        return seen | {weights(tiny_task().model)}

    return lambda hook: states(hook if hook in DYNAMICS else "")


def check(
    hook: str, place: str, kind: type[BaseException], at: int, root: Path, sound: Sound
) -> bool:
    """Run with a bomb and look at everything afterwards; return whether it went off."""
    bomb, ended = Bomb(at, kind()), []
    plugins = places(bombed(hook, bomb), ended)[place]
    if hook != "propose_update":
        plugins.append(STEADY_PREDICTOR)
    ran = run(root, plugins)
    assert {"one", "two"} == {name for name, _ in ended}
    assert 2 == len(ended)
    assert "forward" not in vars(ran.task.model)
    if not bomb.went_off:
        assert [] == ran.errors
        return False
    (error,) = ran.errors
    if isinstance(error, ExceptionGroup):  # of the teardown, at the end of phase and run
        assert hook in {"on_phase_exit", "on_run_end"}
        (error,) = error.exceptions
    assert bomb.load is error
    assert f"raised by plugin 'bomb' in hook {hook!r}" in error.__notes__
    assert ran.weights[0] in sound(hook)
    if hook in ASSEMBLY:
        assert {error} == {why for _, why in ended}
        assert [] == run(root, [STEADY_PREDICTOR]).errors
    else:
        assert ran.updates >= STEPS - 1
        assert [] == verify(root / "saved")
    return True


RAISED = {"first": ERRORS[::2], "middle": ERRORS, "last": ERRORS[1::2]}
"""What is raised by a plugin at each place."""


@pytest.mark.parametrize(
    ("hook", "place"), some(product([hook for hook in HOOKS if hook not in OUTSIDE], RAISED), of=2)
)
def test_what_a_hook_raises_is_named_and_the_run_goes_on(
    tmp_path: Path, hook: str, place: str, sound: Sound
) -> None:
    # Each error at another call, so that together they are raised early and late.
    went_off = [
        check(hook, place, kind, at, tmp_path / kind.__name__, sound)
        for at, kind in enumerate(RAISED[place], start=1)
    ]
    assert went_off[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook not in OUTSIDE])
def test_what_a_hook_raises_at_each_of_its_calls(
    tmp_path: Path, hook: str, kind: type[BaseException], sound: Sound
) -> None:
    at = 1
    while check(hook, "middle", kind, at, tmp_path / f"{at}", sound):
        at += 1
    assert at > 1


@pytest.mark.parametrize("kind", [BoomError, KeyboardInterrupt])
@pytest.mark.parametrize("hook", OBSERVABLE)
def test_an_observer_is_removed_for_an_exception_and_for_nothing_else(
    tmp_path: Path, hook: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    bomb, ended = Bomb(1, kind()), []
    plugins = places(bombed(hook, bomb, observer=True), ended)["middle"]
    ran = run(tmp_path, [*plugins, STEADY_PREDICTOR])
    removed = issubclass(kind, Exception)
    assert ([] if removed else [bomb.load]) == ran.errors
    assert int(removed) == caplog.text.count("plugin.quarantined")
    assert ["one", "two"] == sorted(name for name, _ in ended)


@pytest.mark.parametrize("kind", [BoomError, KeyboardInterrupt])
def test_the_end_of_the_last_phase_and_of_the_run_both_happen(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    bomb, ended = Bomb(1, kind()), []

    @hookimpl
    def on_phase_exit(self: Any, following: Any) -> None:
        if following is None:
            bomb.tick()

    spec = stranger(plugin_with(on_phase_exit=on_phase_exit), "broken")
    ran = run(tmp_path, places(spec, ended)["middle"])
    (error,) = ran.errors
    found = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
    assert bomb.load is found
    assert ["two", "one"] == [name for name, _ in ended]


def test_all_ends_happen_when_several_are_interrupted(tmp_path: Path) -> None:
    ended: list[str] = []

    def ending(name: str, kind: type[BaseException]) -> PluginSpec:
        @hookimpl
        def on_run_end(self: Any) -> None:
            ended.append(name)
            raise kind(name)

        return stranger(plugin_with(on_run_end=on_run_end), name)

    plugins = [ending("a", StopError), ending("b", KeyboardInterrupt), ending("c", BoomError)]
    ran = run(tmp_path, plugins)
    assert ["c", "b", "a"] == ended
    (error,) = ran.errors
    assert (KeyboardInterrupt, ("b",)) == (type(error), error.args)
    assert any("BoomError('c')" in note and "StopError('a')" in note for note in error.__notes__)
