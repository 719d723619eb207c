"""What could go wrong unseen is exact, or ends with a line that names the block and a way out."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from streamed import (
    CPU,
    Sleepy,
    Trace,
    assert_close,
    assert_idle,
    assert_same,
    batch_of,
    blocks_of,
    different,
    optimizer_of,
    train,
)
from torch import nn
from zoo_blocks import BLOCKS, Passed, given, linear, odd, returned, stacked
from zoo_layers import LAYERS, WIDTH, Residual, Stack

from neaptide_plugins.layer_streaming.settings import Settings
from neaptide_plugins.layer_streaming.streaming import Streaming

PLAIN = stacked(linear)


def streaming_of(model: nn.Module, **settings: Any) -> tuple[Streaming, torch.optim.Optimizer]:
    optimizer = optimizer_of(model)
    chosen = Settings(poison=True, **settings)
    streaming = Streaming(
        model, blocks_of(model), optimizer, CPU, chosen, lanes=lambda _, name: Sleepy(name)
    )
    return streaming, optimizer


class Ordered(Stack):
    """Goes through its blocks in an order of its own at each call, and leaves some out."""

    def __init__(self) -> None:
        super().__init__(odd(linear), 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        order = torch.randperm(len(self.blocks))[: int(torch.randint(2, 7, ()))].tolist()
        for index in order:
            x = self.blocks[index](x)
        return self.head(x).square().mean()


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_blocks_come_in_any_order(slots: int) -> None:
    way = {"max_active_layers": slots, "prefetch_distance": slots // 2}
    resident = train(Ordered, None, steps=12)
    assert_same(resident, train(Ordered, way, steps=12))
    assert_same(resident, train(Ordered, {**way, "on_device": True, "in_backward": True}, steps=12))


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


def deep(model: nn.Module, step: int) -> torch.Tensor:
    copied = copy.deepcopy(model)
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
            chance = torch.get_rng_state()
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            fails[0] = when
            with pytest.raises(BrokenError):
                model(batch_of(step)).backward()
            fails[0] = "never"
            streaming.gradients.drop()
            optimizer.zero_grad()
            assert_idle(streaming)
            torch.set_rng_state(chance)
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


def refusal(make: Any, **settings: Any) -> str:
    """Return the one line that training ends with."""
    with pytest.raises((RuntimeError, ValueError)) as caught:
        train(make, settings)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_parameter_that_a_block_changes_is_refused() -> None:
    line = refusal(
        given(
            lambda block, x: block(x.detach().abs().long().sum(-1) % 11) + x,
            lambda block, tokens: block.table(tokens) + block.linear(block.table(tokens)),
            table=lambda: nn.Embedding(11, WIDTH, max_norm=0.5),
        )
    )
    assert "block 'blocks.0' changes a parameter of shape [11, 8]" in line
    assert "exclude it" in line


def test_a_tensor_handed_out_by_an_attribute_is_refused() -> None:
    def aside(block: Any, x: torch.Tensor) -> torch.Tensor:
        y = block.linear(x)
        block.loss = y.square().mean()
        return x + y

    class WithLosses(Passed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + sum(block.loss for block in self.blocks)

    line = refusal(lambda: WithLosses(odd(aside)))
    assert "is used outside without having been returned" in line
    assert "mode = 'graph'" in line


def test_hidden_chance_is_refused() -> None:
    generator = torch.Generator()
    line = refusal(stacked(lambda b, x: b.linear(x) * torch.rand(WIDTH, generator=generator)))
    assert "block 'blocks.3' returned something else the second time" in line


def captured(make_tensor: Any) -> Any:
    class Capturing(Passed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held = make_tensor(self, x)
            for block in self.blocks:
                block.held = [held]
            return super().forward(x)

    return lambda: Capturing(odd(lambda block, x: x + block.linear(x) * block.held[0]))


def test_what_a_block_captures_is_right_or_refused() -> None:
    make = captured(lambda model, x: model.first(x).exp().mean(0, keepdim=True))
    for settings in ({"micro_batches": 2}, {}):
        assert "captures" in refusal(make, **settings)


def test_what_a_block_uses_of_a_parameter_outside_is_right() -> None:
    class Reaching(Passed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                block.reached = [self.first.weight]
            return super().forward(x)

    def make() -> nn.Module:
        return Reaching(odd(lambda block, x: x + block.linear(x) @ block.reached[0]))

    resident = train(make, None, steps=1)
    assert_close(resident, train(make, {}, steps=1))


def test_a_second_derivative_is_refused() -> None:
    def call(model: nn.Module, step: int) -> torch.Tensor:
        x = batch_of(step).requires_grad_()
        (slope,) = torch.autograd.grad(model(x), x, create_graph=True)
        return slope.square().sum()

    with pytest.raises(RuntimeError) as caught:
        train(PLAIN, {}, call=call)
    assert "\n" not in str(caught.value)


def test_a_second_backward_is_refused() -> None:
    def call(model: nn.Module, step: int) -> torch.Tensor:
        loss = model(batch_of(step))
        loss.backward(retain_graph=True)
        return loss

    with pytest.raises(RuntimeError, match=r"block 'blocks\.3' is run backward a second time"):
        train(PLAIN, {}, call=call)


PIECES = {
    "a sum over the batch": stacked(lambda b, x: x + b.linear(x) - b.linear(x).mean(0)),
    "a scalar": returned(lambda b, x: (x, b.linear(x).mean()), lambda pair: pair[0] + pair[1]),
    "turned": returned(lambda b, x: b.linear(x).transpose(0, 1), lambda y: y.transpose(0, 1)),
}


@pytest.mark.parametrize("name", PIECES)
def test_what_looks_across_the_batch_is_refused_in_pieces(name: str) -> None:
    line = refusal(PIECES[name], micro_batches=2)
    assert "block 'blocks.0'" in line
    assert "set micro_batches = 1" in line


def test_an_input_changed_in_place_in_pieces_is_right_or_refused() -> None:
    line = refusal(BLOCKS["a tensor to change"], micro_batches=2)
    assert "block 'blocks.0'" in line
    assert "micro_batches = 1" in line


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_a_block_whose_own_hook_makes_its_weight(kind: str) -> None:
    class Hooked(nn.Linear):
        def unpack(self, x: torch.Tensor) -> torch.Tensor:
            return x

    def make() -> nn.Module:
        return Passed(lambda: getattr(nn.utils, kind)(Hooked(WIDTH, WIDTH)))

    assert "captures" in refusal(make)
