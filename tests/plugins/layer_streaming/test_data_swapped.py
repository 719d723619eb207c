"""A tensor that was `.data` of a streamed weight, or becomes it, is the user's own memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from data_changes import WAYS, fitted, streamed
from habits_inside import INSIDE
from law_loops import Habit, loss_of, plain
from streamed import DEVICE, batch_of, blocks_of, optimizer_of
from support import same_tensors
from torch import nn
from zoo_blocks import linear, stacked

from neaptide import HybridTrainer, ModelError
from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from neaptide_plugins.layer_streaming.weights.block import Block

each_way = pytest.mark.parametrize("way", WAYS)


def named(name: str) -> Habit:
    (found,) = [habit for habit in INSIDE if habit.name == name]
    return found


@each_way
def test_weights_that_are_put_back_before_the_forward_count(way: str, tmp_path: Path) -> None:
    habit = named("weights are swapped by data for a teacher, before the forward")
    expected = plain(habit).weights
    assert same_tensors(expected, streamed(habit, way, tmp_path / "own"))
    assert same_tensors(expected, fitted(habit, way, tmp_path / "fit"))


@each_way
def test_weights_that_are_put_back_after_the_forward_are_refused(way: str, tmp_path: Path) -> None:
    habit = named("weights are swapped by data for a teacher, after the forward")
    for run in (streamed, fitted):
        with pytest.raises(ModelError, match=r"weights of block 'blocks.\d' have changed"):
            run(habit, way, tmp_path / run.__name__)


@each_way
def test_two_sets_of_weights_that_take_turns_in_each_step_count(way: str, tmp_path: Path) -> None:
    """The memory that a weight has left is the user's, and no write-back reaches it."""

    def habit() -> Habit:
        others: list[torch.Tensor] = []

        def loss_fn(model: Any, given: Any) -> torch.Tensor:
            weights = [block.linear.weight for block in model.blocks]
            if model.training and not others:
                others.extend(weight.data.clone() * 0.5 for weight in weights)
            if model.training:
                for place, weight in enumerate(weights):
                    weight.data, others[place] = others[place], weight.data
            return loss_of(model, given)

        return Habit("turns", loss_fn=loss_fn)

    expected = plain(habit()).weights
    assert same_tensors(expected, streamed(habit(), way, tmp_path / "own"))
    assert same_tensors(expected, fitted(habit(), way, tmp_path / "fit"))


@pytest.fixture
def streaming() -> Iterator[Streaming]:
    model = stacked(linear)().to(DEVICE)
    settings = StreamingSettings(poison=True, on_device=True)
    built = Streaming(model, blocks_of(model), optimizer_of(model), DEVICE, settings)
    yield built
    built.close()


def is_home(block: Block) -> bool:
    """Return whether all weights of a block are in its buffer, which is pinned if possible."""
    storage = block.host.untyped_storage().data_ptr()
    inside = [one.untyped_storage().data_ptr() == storage for one in block.parameters]
    return all(inside) and not block.apart


def test_a_new_tensor_that_nobody_keeps_is_copied_to_the_buffer(streaming: Streaming) -> None:
    block = streaming.blocks[1]
    weight = block.parameters[0]
    expected = weight.data * 0.5
    weight.data = weight.data * 0.5
    streaming.forget_copies()
    assert is_home(block)
    assert torch.equal(expected, weight.data)


@pytest.mark.parametrize("kept", ["old", "new"])
def test_a_weight_returns_to_the_buffer_when_nobody_keeps_a_tensor(
    streaming: Streaming, kept: str
) -> None:
    block = streaming.blocks[1]
    weight = block.parameters[0]
    old, new = weight.data, weight.data * 0.5
    before, after = old.clone(), new.clone()
    weight.data = new
    held = [old if kept == "old" else new]
    del old, new
    streaming.forget_copies()
    assert block.apart == {0}
    assert torch.equal(before if kept == "old" else after, held[0])
    block.module(batch_of(0))
    held.clear()
    streaming.forget_copies()
    assert is_home(block)
    assert torch.equal(after, weight.data)


def test_a_weight_that_is_put_back_is_in_the_buffer_as_before(streaming: Streaming) -> None:
    block = streaming.blocks[1]
    weight = block.parameters[0]
    old = weight.data
    weight.data = torch.zeros_like(old)
    streaming.forget_copies()
    weight.data = old
    streaming.forget_copies()
    assert is_home(block)
    assert weight.data.data_ptr() == old.data_ptr()


def test_a_tensor_on_the_device_is_copied_to_ram(streaming: Streaming) -> None:
    weight = streaming.blocks[1].parameters[0]
    old = weight.data
    before = old.clone()
    weight.data = torch.full_like(old, 0.5, device=DEVICE)
    with torch.inference_mode():
        streaming.forget_copies()
    weight.data.mul_(2)
    assert torch.equal(torch.ones_like(old), weight.data)
    assert torch.equal(before, old)


def test_an_array_that_was_taken_keeps_its_values(streaming: Streaming) -> None:
    weight = streaming.blocks[0].parameters[0]
    array = weight.detach().numpy()
    before = array.copy()
    weight.data = torch.zeros_like(weight)
    streaming.forget_copies()
    assert (array == before).all()


def test_memory_that_two_weights_would_share_is_refused(streaming: Streaming) -> None:
    one, other = (block.parameters[0] for block in streaming.blocks[:2])
    one.data = other.data
    with pytest.raises(ModelError, match=r"memory of another tensor of the model") as raised:
        streaming.forget_copies()
    assert "\n" not in str(raised.value)
    one.data = other.data.clone()
    streaming.forget_copies()


def test_the_ledger_has_the_buffer_that_waits_for_its_weight(tmp_path: Path) -> None:
    model = stacked(linear)().to(DEVICE)
    config = {"plugins": {"layer-streaming": {}}, "run": {"dir": str(tmp_path)}}
    with HybridTrainer(
        model, optimizer_of(model), loss_fn=lambda net, x: net(x).sum(), config=config
    ) as trainer:
        weights = [one for one in model.parameters() if isinstance(one, nn.Parameter)]
        kept = [weight.data for weight in weights]
        before = trainer.estimate_memory().total(kind="weights.unused")
        for weight in weights:
            weight.data = weight.data * 0.5
        trainer.step(batch_of(0))
        assert before == 0 < trainer.estimate_memory().total(kind="weights.unused")
        assert len(kept) == len(weights)
