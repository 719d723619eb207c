"""Faults that strangers planted in plugins, for `verify` to name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from support import DEVICE, plugin_with, stranger
from torch import nn
from torch.nn import functional

from neaptide import Update, WeighedLoss, hookimpl

if TYPE_CHECKING:
    from neaptide import PluginSpec


def scaled() -> PluginSpec:
    """A backward scaled by 1.001."""

    @hookimpl
    def around_backward(self: Any, run: Any) -> Any:
        return lambda following, *, loss, **more: following(loss=loss * 1.001, **more)

    return stranger(plugin_with(around_backward=around_backward), "scaled")


def loses_a_buffer() -> PluginSpec:
    """A buffer set back before each forward."""

    @hookimpl
    def before_forward(self: Any, model: nn.Module) -> None:
        model.blocks[1].calls.zero_()

    return stranger(plugin_with(before_forward=before_forward), "loses")


def drops_a_buffer() -> PluginSpec:
    """A buffer that becomes a plain attribute."""

    @hookimpl
    def convert_model(self: Any, model: nn.Module) -> None:
        value = model.blocks[2]._buffers.pop("calls")
        model.blocks[2].calls = value.clone()

    return stranger(plugin_with(convert_model=convert_model), "drops")


def draws() -> PluginSpec:
    """A random number drawn too many, in the third step."""

    @hookimpl
    def after_step(self: Any, step: int) -> None:
        if step == 3:
            torch.rand((), device=DEVICE)

    return stranger(plugin_with(after_step=after_step), "draws", observer=True)


def draws_of_python() -> PluginSpec:
    """The same of Python's generator."""

    @hookimpl
    def after_backward(self: Any) -> None:
        import random

        random.random()

    return stranger(plugin_with(after_backward=after_backward), "draws", observer=True)


def rounds() -> PluginSpec:
    """Weights rounded to bfloat16, which claims to be exact."""

    @hookimpl
    def on_run_start(self: Any, store: Any) -> None:
        def rounded(span: Any, weight: Any, delta: Any) -> None:
            if span.name == "blocks.1.up.weight":
                weight.copy_(weight.bfloat16())

        store.on_update(rounded)

    return stranger(plugin_with(on_run_start=on_run_start), "rounds")


def _forward(self: Any, run: Any) -> Any:
    def weighed(following: Any, *, model: Any, batch: Any, phase: Any, moment: str) -> Any:
        found = following(model=model, batch=batch, phase=phase, moment=moment)
        if moment != "train":
            return found
        return WeighedLoss(found.mean, 1.0, is_sum=False)  # each part counts the same

    return weighed


def weighs(numerics: str = "tolerance", rtol: float = 1e-5) -> PluginSpec:
    """Micro-batches weighed as if they had the same number of targets."""

    @hookimpl
    def plan_micro_batches(self: Any, batch: Any) -> Any:
        parts = (slice(1), slice(1, 4))
        return [{key: value[part] for key, value in batch.items()} for part in parts]

    around_forward = hookimpl(_forward)
    members = {"plan_micro_batches": plan_micro_batches, "around_forward": around_forward}
    return stranger(plugin_with(**members), "weighs", numerics=numerics, rtol=rtol)


def edits() -> PluginSpec:
    """A hook that edits the batch after its forward."""

    @hookimpl
    def before_forward(self: Any, batch: Any, step: int) -> None:
        if step == 2:
            batch["targets"][1, 1] = 0

    return stranger(plugin_with(before_forward=before_forward), "edits", observer=True)


def clips_twice() -> PluginSpec:
    """Clips the gradients, which the core clips again."""

    @hookimpl
    def around_optimizer_step(self: Any, run: Any) -> Any:
        def clipped(following: Any, **given: Any) -> Any:
            (group,) = given["optimizer"].param_groups
            torch.nn.utils.clip_grad_norm_(group["params"], 0.3)
            return following(**given)

        return clipped

    return stranger(plugin_with(around_optimizer_step=around_optimizer_step), "clips")


def recomputes_otherwise() -> PluginSpec:
    """Runs a block anew in its backward, with another dropout mask."""

    @hookimpl
    def on_run_start(self: Any, model: nn.Module) -> None:
        from torch.utils.checkpoint import checkpoint

        block = model.blocks[1]
        own = type(block).forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            calls = block.calls.clone()

            def run(y: torch.Tensor) -> torch.Tensor:
                block.calls.copy_(calls)
                return own(block, y)

            return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)

        self.block = block
        block.forward = forward

    @hookimpl
    def on_run_end(self: Any) -> None:
        del self.block.forward

    members = {"on_run_start": on_run_start, "on_run_end": on_run_end}
    return stranger(plugin_with(**members), "recomputes")


def unties() -> PluginSpec:
    """Gives one of two tied weights a copy of its own."""

    @hookimpl
    def convert_model(self: Any, model: nn.Module) -> None:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())

    return stranger(plugin_with(convert_model=convert_model), "unties")


def unties_while_running() -> PluginSpec:
    """Lets the head compute with an old value of the tied weight."""

    @hookimpl
    def on_run_start(self: Any, model: nn.Module) -> None:
        old = model.head.weight.detach().clone()
        head = model.head
        self.head = head
        head.forward = lambda x: functional.linear(x, old, head.bias)

    @hookimpl
    def on_run_end(self: Any) -> None:
        del self.head.forward

    members = {"on_run_start": on_run_start, "on_run_end": on_run_end}
    return stranger(plugin_with(**members), "unties")


def evaluates_with_a_trace() -> PluginSpec:
    """Changes a weight in an evaluation, and does not change it back."""

    @hookimpl
    def on_run_start(self: Any, store: Any) -> None:
        self.store = store

    @hookimpl
    def around_evaluate(self: Any, run: Any) -> Any:
        def evaluated(following: Any, **given: Any) -> float:
            span = self.store.spans()[1]
            with self.store.loan(span, "write") as weight, torch.no_grad():
                weight.mul_(0.5)
            return following(**given)

        return evaluated

    members = {"on_run_start": on_run_start, "around_evaluate": around_evaluate}
    return stranger(plugin_with(**members), "evaluates")


def forgets() -> PluginSpec:
    """Scales late gradients, by a counter that a checkpoint does not have."""

    @hookimpl
    def around_backward(self: Any, run: Any) -> Any:
        self.count = 0

        def counted(following: Any, *, loss: torch.Tensor, **more: Any) -> None:
            self.count += 1
            following(loss=loss * (0.5 if self.count > 5 else 1.0), **more)

        return counted

    return stranger(
        plugin_with(around_backward=around_backward), "forgets", numerics="changes-training"
    )


def predictor() -> PluginSpec:
    """A predictor that proposes a small step in each Predict phase."""

    @hookimpl
    def propose_update(self: Any, store: Any) -> Update:
        def delta(span: Any) -> Any:
            with store.loan(span, "read") as weight:
                return weight * -0.001

        return Update(3, delta)

    return stranger(
        plugin_with(propose_update=propose_update),
        "predicts",
        claims={"predictor"},
        numerics="changes-training",
    )


def keeps_the_jump() -> PluginSpec:
    """Takes a refused jump back in all weights but one."""

    @hookimpl
    def on_run_start(self: Any, store: Any) -> None:
        self.store = store

    @hookimpl
    def around_predict(self: Any, run: Any) -> Any:
        def tried(following: Any, **given: Any) -> Any:
            jump = following(**given)
            if jump is not None and not jump.accepted:
                span = self.store.spans()[2]
                with self.store.loan(span, "write") as weight, torch.no_grad():
                    weight.mul_(1.01)
            return jump

        return tried

    members = {"on_run_start": on_run_start, "around_predict": around_predict}
    return stranger(plugin_with(**members), "keeps")


def raises() -> PluginSpec:
    """An observer that raises an error in the second step."""

    @hookimpl
    def after_step(self: Any, step: int) -> None:
        if step == 2:
            msg = "no such thing"
            raise KeyError(msg)

    return stranger(plugin_with(after_step=after_step), "raises", observer=True)


def one_of_two(name: str) -> PluginSpec:
    """One of two plugins that scale gradients only together."""

    @hookimpl
    def around_backward(self: Any, run: Any) -> Any:
        def called(following: Any, *, loss: torch.Tensor, **more: Any) -> None:
            both = {"left", "right"} <= run.config.plugins.keys()
            following(loss=loss * (1.5 if both and name == "left" else 1.0), **more)

        return called

    return stranger(plugin_with(around_backward=around_backward), name)
