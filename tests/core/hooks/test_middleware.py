"""Around hooks: their order, what they may do with the call inside, and who is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support import plugin_with, same_tensors, stranger, tensors_of

from neaptide import ConfigError, HybridTrainer, Loss, Outcome, PluginError, PluginSpec, hookimpl
from neaptide.api.timeline import Timeline
from neaptide.hooks.middleware import RETURNS, blame, compose, culprit
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    import torch
    from torch import nn

WHERE = "around_evaluate"


def composed(where: str, core: Any, layers: Any) -> Any:
    return compose(where, core, layers, Timeline())


def test_the_first_layer_is_the_outermost() -> None:
    order: list[str] = []

    def layer(name: str) -> Any:
        def around(following: Any, **arguments: Any) -> Any:
            order.append(f"{name} in")
            result = following(**arguments)
            order.append(f"{name} out")
            return result

        return name, around

    call = composed(WHERE, lambda x: order.append("core") or x, [layer("a"), layer("b")])
    assert 3.0 == call(x=3.0)
    assert ["a in", "b in", "core", "b out", "a out"] == order


def test_without_layers_the_core_is_called() -> None:
    assert 7 == composed(WHERE, lambda x: x + 1, [])(x=6)


def test_a_layer_may_retry_skip_and_change_both_ways() -> None:
    calls: list[float] = []

    def core(x: float) -> float:
        calls.append(x)
        if len(calls) == 1:
            raise MemoryError
        return x

    def retry(following: Any, **arguments: Any) -> float:
        try:
            return following(**arguments)
        except MemoryError:
            return following(**arguments)

    def double(following: Any, x: float) -> float:
        return following(x=2 * x) + 1

    def skip(following: Any, x: float) -> float:
        return -1.0

    assert 11.0 == composed(WHERE, core, [("r", retry), ("d", double)])(x=5.0)
    assert [10, 10] == calls
    assert -1.0 == composed(WHERE, core, [("s", skip), ("d", double)])(x=5.0)
    assert [10, 10] == calls


def test_what_is_not_callable_is_refused_by_name() -> None:
    with pytest.raises(
        PluginError, match=r"plugin 'p' must return a function .* from 'around_evaluate'"
    ):
        composed(WHERE, print, [("p", 3)])  # type: ignore[list-item]  # the mistake under test


@pytest.mark.parametrize("where", RETURNS)
def test_a_layer_that_returns_something_else_is_named(where: str) -> None:
    def forgetful(following: Any, **arguments: Any) -> Any:
        following(**arguments)
        return "nonsense"

    with pytest.raises(PluginError) as caught:
        composed(where, lambda: None, [("p", forgetful)])()
    kinds = " or ".join(kind.__name__ for kind in RETURNS[where]).replace("NoneType", "None")
    assert f"plugin 'p' must return {kinds} from {where!r} (got str)" == str(caught.value)


def passing(following: Any, **arguments: Any) -> Any:
    """Call the next layer."""
    return following(**arguments)


def raising(following: Any, **arguments: Any) -> Any:
    """Fail before the next layer."""
    raise ConnectionError


def test_the_innermost_culprit_is_blamed_once() -> None:
    call = composed(WHERE, print, [("outer", passing), ("inner", raising), ("in", passing)])
    with pytest.raises(ConnectionError) as caught:
        call()
    assert ["raised by plugin 'inner' in hook 'around_evaluate'"] == caught.value.__notes__
    assert "inner" == culprit(caught.value)


def test_nobody_is_blamed_for_the_core() -> None:
    def core() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError) as caught:
        composed(WHERE, core, [("outer", passing)])()
    assert not hasattr(caught.value, "__notes__")
    assert culprit(caught.value) is None


def test_the_first_blame_stands() -> None:
    error = OSError()
    blame(error, "guilty", WHERE)
    blame(error, "innocent", "elsewhere")
    assert ["raised by plugin 'guilty' in hook 'around_evaluate'"] == error.__notes__


def test_an_error_translated_by_a_plugin_is_its_own() -> None:
    def translating(following: Any, **arguments: Any) -> Any:
        try:
            return following(**arguments)
        except ConnectionError as error:
            raise LookupError from error

    with pytest.raises(LookupError) as caught:
        composed(WHERE, print, [("translator", translating), ("inner", raising)])()
    assert ["raised by plugin 'translator' in hook 'around_evaluate'"] == caught.value.__notes__


def around(hook: str, middleware: Any, name: str = "around") -> PluginSpec:
    """Return a plugin with one middleware."""

    def implementation(self: Any) -> Any:
        return middleware

    implementation.__name__ = hook
    return stranger(plugin_with(**{hook: hookimpl(implementation)}), name)


def run(plugins: list[Any], loss_fn: Any = tiny_loss, steps: int = 4) -> dict[str, torch.Tensor]:
    """Return weights and buffers after a short run."""
    task = tiny_task()
    with HybridTrainer(task.model, task.optimizer, loss_fn=loss_fn, plugins=plugins) as trainer:
        for batch in task.batches[:steps]:
            trainer.step(batch)
    return tensors_of(task.model)


HOOKS = [
    "around_train_step",
    "around_forward",
    "around_backward",
    "around_optimizer_step",
]


def test_passing_everything_through_changes_no_bit() -> None:
    plugins = [around(hook, passing, f"p{index}") for index, hook in enumerate(HOOKS)]
    assert same_tensors(run([]), run(plugins))


def failing_loss(model: nn.Module, batch: Any) -> Loss:
    """Fail as users' code does."""
    raise ZeroDivisionError


@pytest.mark.parametrize("hook", HOOKS)
def test_a_failing_loss_fn_blames_nobody(hook: str) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run([around(hook, passing)], failing_loss)
    assert not hasattr(caught.value, "__notes__")


def test_a_failing_backward_blames_nobody() -> None:
    def detached(model: nn.Module, batch: Any) -> torch.Tensor:
        return tiny_loss(model, batch).sum.detach()

    with pytest.raises(ConfigError, match="does not depend on the weights") as caught:
        run([around("around_backward", passing)], detached)
    assert not hasattr(caught.value, "__notes__")


def test_a_batch_can_be_cast_on_its_way_to_the_model() -> None:
    def halved(following: Any, *, batch: Any, **arguments: Any) -> Any:
        return following(batch={"x": batch["x"] * 0.5, "y": batch["y"]}, **arguments)

    def halved_loss(model: nn.Module, batch: Any) -> Loss:
        return tiny_loss(model, {"x": batch["x"] * 0.5, "y": batch["y"]})

    assert same_tensors(run([], halved_loss), run([around("around_forward", halved)]))


def test_a_scaled_loss_is_unscaled_before_the_update() -> None:
    def scaled(following: Any, *, loss: torch.Tensor, **arguments: Any) -> None:
        following(loss=loss * 1024.0, **arguments)

    def unscaled(following: Any, *, gradient_scale: Any, **arguments: Any) -> Outcome:
        return following(gradient_scale=gradient_scale / 1024.0, **arguments)

    plugins = [
        around("around_backward", scaled, "scale"),
        around("around_optimizer_step", unscaled, "unscale"),
    ]
    # A power of two moves exponents alone.
    assert same_tensors(run([]), run(plugins))


def test_an_update_can_be_left_out() -> None:
    def skipped(following: Any, **arguments: Any) -> Outcome:
        return Outcome.SKIPPED

    task = tiny_task()
    before = {name: value.detach().clone() for name, value in task.model.named_parameters()}
    spec = around("around_optimizer_step", skipped)
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, plugins=[spec]) as trainer:
        assert Outcome.SKIPPED is trainer.step(task.batches[0]).outcome
        assert all(parameter.grad is None for parameter in task.model.parameters())
    assert same_tensors(
        before, {name: value.detach() for name, value in task.model.named_parameters()}
    )


def test_moments_say_what_a_forward_is_for() -> None:
    moments: list[str] = []

    def watched(following: Any, *, moment: str, **arguments: Any) -> Any:
        moments.append(moment)
        return following(moment=moment, **arguments)

    task = tiny_task()
    spec = around("around_forward", watched)
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, plugins=[spec]) as trainer:
        trainer.step(task.batches[0])
        trainer.evaluate(task.batches[1:3])
    assert ["train", "evaluate", "evaluate"] == moments
