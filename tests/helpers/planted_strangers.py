"""More faults that strangers planted in plugins, one hook each, for `verify` to name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from support import plugin_with, stranger
from torch import nn

from neaptide import hookimpl
from neaptide_toolkit.offload import DONE

if TYPE_CHECKING:
    from neaptide import PluginSpec


def scales_one_gradient() -> PluginSpec:
    """The gradient of one parameter is scaled."""

    @hookimpl
    def on_run_start(self: Any, model: nn.Module) -> None:
        self.handle = model.blocks[1].norm.weight.register_hook(lambda grad: grad * 1.01)

    @hookimpl
    def on_run_end(self: Any) -> None:
        self.handle.remove()

    members = {"on_run_start": on_run_start, "on_run_end": on_run_end}
    return stranger(plugin_with(**members), "one-gradient")


def steps_the_schedule() -> PluginSpec:
    """The learning rate is lowered once more in each step."""

    @hookimpl
    def on_run_start(self: Any, store: Any) -> None:
        self.store = store

    @hookimpl
    def after_step(self: Any) -> None:
        for group in self.store.optimizer.param_groups:
            group["lr"] *= 0.9

    members = {"on_run_start": on_run_start, "after_step": after_step}
    return stranger(plugin_with(**members), "schedule")


def decays_all() -> PluginSpec:
    """Weight decay is given to every group."""

    @hookimpl
    def on_run_start(self: Any, store: Any) -> None:
        for group in store.optimizer.param_groups:
            group["weight_decay"] = 0.3

    return stranger(plugin_with(on_run_start=on_run_start), "decays")


def restores_old_random_state() -> PluginSpec:
    """The random state of the start is set again after the third step."""

    @hookimpl
    def on_run_start(self: Any) -> None:
        self.state = torch.get_rng_state()

    @hookimpl
    def after_step(self: Any, step: int) -> None:
        if step == 3:
            torch.random.default_generator.set_state(self.state)

    members = {"on_run_start": on_run_start, "after_step": after_step}
    return stranger(plugin_with(**members), "restores")


def recomputes_in_eval() -> PluginSpec:
    """A block is run anew in its backward, in eval mode."""

    @hookimpl
    def on_run_start(self: Any, model: nn.Module) -> None:
        from torch.utils.checkpoint import checkpoint

        block = model.blocks[1]
        own, calls = type(block).forward, []

        def run(y: torch.Tensor) -> torch.Tensor:
            calls.append(None)
            was = block.drop.training
            block.drop.training = was and len(calls) % 2 == 1
            count = block.calls.clone()
            found = own(block, y)
            if len(calls) % 2 == 0:
                block.calls.copy_(count)
            block.drop.training = was
            return found

        def forward(x: torch.Tensor) -> torch.Tensor:
            if not torch.is_grad_enabled():
                return own(block, x)
            calls.clear()
            return checkpoint(run, x, use_reentrant=False, determinism_check="none")

        self.block = block
        block.forward = forward

    @hookimpl
    def on_run_end(self: Any) -> None:
        del self.block.forward

    members = {"on_run_start": on_run_start, "on_run_end": on_run_end}
    return stranger(plugin_with(**members), "recomputes")


def widens_a_buffer() -> PluginSpec:
    """A buffer has another dtype, and the same value."""

    @hookimpl
    def convert_model(self: Any, model: nn.Module) -> None:
        model.blocks[2].calls = model.blocks[2].calls.to(torch.float64)

    return stranger(plugin_with(convert_model=convert_model), "widens")


def rounds_a_jump() -> PluginSpec:
    """A weight is rounded to eight bits, after accepted jumps only."""

    @hookimpl
    def on_run_start(self: Any, store: Any) -> None:
        self.store = store

    @hookimpl
    def around_predict(self: Any, run: Any) -> Any:
        def tried(following: Any, **given: Any) -> Any:
            jump = following(**given)
            if jump is not None and jump.accepted:
                with self.store.loan(self.store.spans()[1], "write") as weight, torch.no_grad():
                    scale = weight.abs().max() / 127
                    weight.copy_((weight / scale).round() * scale)
            return jump

        return tried

    members = {"on_run_start": on_run_start, "around_predict": around_predict}
    return stranger(plugin_with(**members), "int8-jump")


def drops_the_last_part() -> PluginSpec:
    """The last micro-batch is dropped."""

    @hookimpl
    def plan_micro_batches(self: Any, batch: Any) -> Any:
        parts = (slice(1), slice(1, 3))
        return [{key: value[part] for key, value in batch.items()} for part in parts]

    members = {"plan_micro_batches": plan_micro_batches}
    return stranger(plugin_with(**members), "drops", numerics="tolerance", rtol=1e-5)


def clips_before_unscaling() -> PluginSpec:
    """Gradients are scaled in the backward, and unscaled after they were clipped."""

    @hookimpl
    def around_backward(self: Any, run: Any) -> Any:
        return lambda following, *, loss, **more: following(loss=loss * 1024.0, **more)

    @hookimpl
    def around_optimizer_step(self: Any, run: Any) -> Any:
        def unscaled(following: Any, **given: Any) -> Any:
            for group in given["optimizer"].param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], 0.5)
                for one in group["params"]:
                    one.grad.div_(1024.0)
            return following(**given)

        return unscaled

    members = {"around_backward": around_backward, "around_optimizer_step": around_optimizer_step}
    return stranger(plugin_with(**members), "unscales-late")


def keeps_old_gradients() -> PluginSpec:
    """The gradients of the second step are added to those of the third."""

    @hookimpl
    def on_run_start(self: Any, model: nn.Module) -> None:
        self.model, self.old = model, None

    @hookimpl
    def after_backward(self: Any, step: int) -> None:
        head = self.model.head.bias
        if self.old is not None:
            head.grad += self.old
        self.old = head.grad.clone() if step == 1 else None

    members = {"on_run_start": on_run_start, "after_backward": after_backward}
    return stranger(plugin_with(**members), "keeps")


def skips_an_update() -> PluginSpec:
    """The third update is not made."""

    @hookimpl
    def around_optimizer_step(self: Any, run: Any) -> Any:
        self.count = 0

        def stepped(following: Any, **given: Any) -> Any:
            self.count += 1
            if self.count == 3:
                for group in given["optimizer"].param_groups:
                    for one in group["params"]:
                        one.grad.zero_()
            return following(**given)

        return stepped

    return stranger(plugin_with(around_optimizer_step=around_optimizer_step), "skips")


def freezes() -> PluginSpec:
    """A weight is frozen."""

    @hookimpl
    def convert_model(self: Any, model: nn.Module) -> None:
        model.blocks[0].up.bias.requires_grad_(False)

    return stranger(plugin_with(convert_model=convert_model), "freezes")


def tells_another_loss() -> PluginSpec:
    """The loss that is told is another one; training is right."""

    @hookimpl
    def around_train_step(self: Any, run: Any) -> Any:
        def stepped(following: Any, **given: Any) -> Any:
            found = following(**given)
            return attrs.evolve(found, loss=found.loss * 1.001)

        return stepped

    return stranger(plugin_with(around_train_step=around_train_step), "tells")


def saves_with_a_trace() -> PluginSpec:
    """A weight is rounded when a checkpoint is written."""

    @hookimpl
    def on_run_start(self: Any, store: Any) -> None:
        self.store = store

    @hookimpl
    def around_save(self: Any, run: Any) -> Any:
        def saved(following: Any, **given: Any) -> Any:
            with self.store.loan(self.store.spans()[1], "write") as weight, torch.no_grad():
                weight.copy_(weight.bfloat16())
            return following(**given)

        return saved

    members = {"on_run_start": on_run_start, "around_save": around_save}
    return stranger(plugin_with(**members), "saves")


def leaves_eval_mode() -> PluginSpec:
    """A module is left in eval mode by an evaluation."""

    @hookimpl
    def on_run_start(self: Any, model: nn.Module) -> None:
        self.model = model

    @hookimpl
    def around_evaluate(self: Any, run: Any) -> Any:
        def evaluated(following: Any, **given: Any) -> float:
            found = following(**given)
            self.model.blocks[1].drop.eval()
            return found

        return evaluated

    members = {"on_run_start": on_run_start, "around_evaluate": around_evaluate}
    return stranger(plugin_with(**members), "leaves")


def counts_otherwise() -> PluginSpec:
    """The number of targets is told wrongly, so that the mean is another one."""

    @hookimpl
    def around_forward(self: Any, run: Any) -> Any:
        def weighed(following: Any, **given: Any) -> Any:
            found = following(**given)
            return attrs.evolve(found, count=found.count + 1)

        return weighed

    return stranger(plugin_with(around_forward=around_forward), "counts")


class _EarlyLane:
    """A lane whose copies are said to be done as soon as they are submitted."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane

    def submit(self, *given: Any) -> Any:
        self._lane.submit(*given)
        return DONE

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)


def uses_a_slot_early() -> PluginSpec:
    """Uses a slot of layer-streaming before the copy into it is done."""

    @hookimpl
    def on_run_start(self: Any, store: Any) -> None:
        streaming = getattr(store, "streaming", None)
        if streaming is not None:
            streaming.residency._lane = _EarlyLane(streaming.residency._lane)

    return stranger(plugin_with(on_run_start=on_run_start), "early")
