"""What is done between steps, and an error in one, leaves training as it is resident."""

from __future__ import annotations

import copy
import io
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from streamed import (
    DEVICE,
    Trace,
    assert_idle,
    assert_same,
    batch_of,
    blocks_of,
    different,
    optimizer_of,
    slow_lane,
    train,
)
from torch import nn
from zoo_blocks import linear, stacked
from zoo_layers import LAYERS, Residual, Stack

from neaptide import ModelError
from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = stacked(linear)


def streaming_of(model: nn.Module, **settings: Any) -> tuple[Streaming, torch.optim.Optimizer]:
    optimizer = optimizer_of(model)
    chosen = StreamingSettings(poison=True, **settings)
    streaming = Streaming(model, blocks_of(model), optimizer, DEVICE, chosen, lanes=slow_lane)
    return streaming, optimizer


def changing(model: Any, step: int) -> torch.Tensor:
    """Freezes, thaws and evaluates between the steps."""
    model.blocks[1].requires_grad_(step % 2 == 0)
    model.blocks[3].requires_grad_(step >= 1)
    with torch.no_grad():
        model(batch_of(90))
    model.eval()
    with torch.inference_mode():
        seen = model(batch_of(91))
    model.train()
    return model(batch_of(step)) + float(seen)


@pytest.mark.parametrize(
    "update", [{}, {"on_device": True}, {"on_device": True, "in_backward": True}]
)
def test_freezing_and_evaluating_between_steps(update: dict[str, Any]) -> None:
    resident = train(PLAIN, None, steps=5, call=changing)
    assert_same(resident, train(PLAIN, update, steps=5, call=changing))


def test_a_model_in_evaluation_mode_trains_as_it_does_resident() -> None:
    def make() -> nn.Module:
        layer, call = LAYERS["encoder layer"]
        return Stack(lambda: Residual(layer(), call)).eval()

    assert_same(train(make, None), train(make, {}))


@pytest.mark.parametrize(
    ("change", "now"),
    [
        (lambda weight: weight.t(), r"float32 of shape \[(\d+), \1\] and strides \[1, \1\]"),
        (lambda weight: weight[:1], r"float32 of shape \[1, (\d+)\] and strides \[1\]"),
        (lambda weight: weight.double(), "float64"),
    ],
    ids=["strides", "shape", "dtype"],
)
def test_a_weight_of_another_form_is_refused_in_one_line(
    change: Callable[[torch.Tensor], torch.Tensor], now: str
) -> None:
    model = PLAIN()
    streaming, _ = streaming_of(model)
    block = blocks_of(model)[0][1]
    weight = next(one for one in block.parameters() if one.dim() == 2)
    weight.data = change(weight.data)
    with pytest.raises(ModelError, match=rf"is now {now}.*keeps its shape, dtype and strides"):
        streaming.forget_copies()


def deep(model: nn.Module, step: int) -> torch.Tensor:
    copied = copy.deepcopy(model).to(DEVICE)
    first, second = model(batch_of(step)), copied(batch_of(step))
    assert torch.equal(first, second)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    assert [] == different(torch.load(buffer), dict(model.state_dict()))
    return first


def test_copies_and_saved_states_are_whole_at_any_time() -> None:
    assert_same(train(PLAIN, None, call=deep), train(PLAIN, {}, call=deep))


class BrokenError(RuntimeError):
    """What a block raises."""


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("update", [{}, {"on_device": True, "in_backward": True}])
def test_after_an_error_in_a_block_all_goes_on(when: str, update: dict[str, Any]) -> None:
    def call(block: Any, x: torch.Tensor) -> torch.Tensor:
        block.seen += 1
        if block.fails[0] == "forward":
            raise BrokenError
        y = block.linear(x)
        if block.fails[0] == "backward" and y.requires_grad:
            y.register_hook(lambda _: (_ for _ in ()).throw(BrokenError()))
        return x + y

    fails = ["never"]
    make = stacked(call, seen=lambda: torch.zeros(()), fails=lambda: fails)

    resident = train(make, None)
    torch.manual_seed(0)
    model = make()
    for block in model.blocks:
        block.fails = fails
    streaming, optimizer = streaming_of(model, **update)
    trace = Trace()
    for step in range(3):
        if step == 1 and not update:
            rng_state = torch.get_rng_state()
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            fails[0] = when
            with pytest.raises(BrokenError):
                model(batch_of(step)).backward()
            fails[0] = "never"
            streaming.gradients.drop()
            optimizer.zero_grad()
            assert_idle(streaming)
            torch.set_rng_state(rng_state)
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
        loss = model(batch_of(step))
        loss.backward()
        streaming.gradients.flush()
        trace.losses.append(loss.detach())
        streaming.step()
        streaming.gradients.drop()
        optimizer.zero_grad()
    streaming.close()
    assert [float(loss) for loss in resident.losses] == [float(loss) for loss in trace.losses]
    assert [] == different(resident.state, dict(model.state_dict()))


def test_closing_waits_for_a_backward_that_an_error_elsewhere_has_broken_off() -> None:
    """On a GPU autograd's thread is in a block while the caller's thread raises."""
    entered = threading.Event()

    def slow(block: Any, x: torch.Tensor) -> torch.Tensor:
        y = block.linear(x)
        if y.requires_grad:
            y.register_hook(lambda _: entered.set() or time.sleep(0.1))
        return y

    def fail(_: torch.Tensor) -> None:
        entered.wait(10)
        raise BrokenError

    model = stacked(slow)().to(DEVICE)
    streaming, _ = streaming_of(model)
    on_host = torch.ones((), requires_grad=True) * 1
    on_host.register_hook(fail)
    with pytest.raises(BrokenError):
        (model(batch_of(0)) + on_host).backward()
    streaming.close()
    assert {0} == {block.users for block in streaming.blocks}
