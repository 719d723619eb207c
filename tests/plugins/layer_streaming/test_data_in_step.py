"""What other code does to a weight inside a step counts as without streaming, or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from data_changes import WAYS, fitted, streamed
from law_loops import Habit, loss_of, plain
from streamed import DEVICE, batch_of, blocks_of, optimizer_of, slow_lane
from support import same_tensors
from torch import nn
from zoo_blocks import linear, stacked

from neaptide import ModelError
from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Change = Callable[[nn.Parameter], Any]

AFTER_BACKWARD = [way for way in WAYS if way != "in backward"]


def in_place(weight: nn.Parameter) -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()  # a copy of the weight may be under way
    with torch.no_grad():
        weight.mul_(0.5)


def assign(weight: nn.Parameter) -> None:
    weight.data = weight.data * 0.5


CHANGES: dict[str, Change] = {
    "data.mul_": lambda weight: weight.data.mul_(0.5),
    "data =": assign,
    "mul_": in_place,
}
BY_DATA = [name for name in CHANGES if name.startswith("data")]
by_data = pytest.mark.parametrize("by", BY_DATA)
by_any = pytest.mark.parametrize("by", CHANGES)
each_place = pytest.mark.parametrize("place", [0, 3])
each_way = pytest.mark.parametrize("way", WAYS)


def changing(change: Change, place: int, *, last: bool) -> Habit:
    """Change a weight before or after the forward."""

    def loss_fn(model: Any, given: Any) -> torch.Tensor:
        if model.training and not last:
            change(model.blocks[place].linear.weight)
        loss = loss_of(model, given)
        if model.training and last:
            change(model.blocks[place].linear.weight)
        return loss

    return Habit("changing", loss_fn=loss_fn)


@by_data
@each_place
@each_way
def test_a_change_of_data_before_the_forward_counts(
    way: str, place: int, by: str, tmp_path: Path
) -> None:
    habit = changing(CHANGES[by], place, last=False)
    expected = plain(habit).weights
    assert same_tensors(expected, streamed(habit, way, tmp_path / "own"))
    assert same_tensors(expected, fitted(habit, way, tmp_path / "fit"))


@each_place
@each_way
def test_a_change_in_place_before_the_forward_counts_or_is_refused(
    way: str, place: int, tmp_path: Path
) -> None:
    habit = changing(in_place, place, last=False)
    expected = plain(habit).weights
    assert same_tensors(expected, streamed(habit, way, tmp_path / "own"))
    if way.startswith("cpu"):
        assert same_tensors(expected, fitted(habit, way, tmp_path / "fit"))
    else:
        with pytest.raises(ModelError, match=rf"'blocks.{place}' was changed in place .*\.data"):
            fitted(habit, way, tmp_path / "fit")


@by_any
@each_place
@each_way
def test_a_change_between_forward_and_backward_is_refused(
    way: str, place: int, by: str, tmp_path: Path
) -> None:
    habit = changing(CHANGES[by], place, last=True)
    for run in (streamed, fitted):
        with pytest.raises(ModelError, match=f"weights of block 'blocks.{place}' have changed"):
            run(habit, way, tmp_path / run.__name__)


@by_any
@each_way
def test_a_change_inside_a_block_is_refused(way: str, by: str, tmp_path: Path) -> None:
    def prepare(net: Any) -> Any:
        def change(module: Any, _: Any) -> None:
            CHANGES[by](module.weight)

        net.blocks[1].linear.register_forward_pre_hook(change)
        return net

    with pytest.raises(ModelError, match=r"'blocks.1' changes a parameter of shape \[8, 8\]"):
        streamed(Habit("inside", prepare=prepare), way, tmp_path)


@by_any
@each_place
@pytest.mark.parametrize("way", AFTER_BACKWARD)
def test_a_change_by_a_hook_before_the_step_counts(
    way: str, place: int, by: str, tmp_path: Path
) -> None:
    def before(loop: Any) -> None:
        weight = loop.model.blocks[place].linear.weight

        def change(*_: Any) -> None:
            CHANGES[by](weight)

        if not loop.step:
            loop.optimizer.register_step_pre_hook(change)

    habit = Habit("hooked", before)
    expected = plain(habit).weights
    assert same_tensors(expected, streamed(habit, way, tmp_path / "own"))
    assert same_tensors(expected, fitted(habit, way, tmp_path / "fit"))


@each_way
def test_reading_data_is_allowed_anywhere_and_sees_the_last_update(
    way: str, tmp_path: Path
) -> None:
    def loss_fn(model: Any, given: Any) -> torch.Tensor:
        before = sum(float(block.linear.weight.data.sum()) for block in model.blocks)
        loss = loss_of(model, given)
        after = sum(float(block.linear.weight.data.sum()) for block in model.blocks)
        return loss * (1 + before + after)

    def prepare(net: Any) -> Any:
        net.blocks[1].linear.register_forward_hook(
            lambda module, _, output: output * module.weight.data.abs().max()
        )
        return net

    habit = Habit("reading", loss_fn=loss_fn, prepare=prepare)
    expected = plain(habit).weights
    assert same_tensors(expected, streamed(habit, way, tmp_path / "own"))
    assert same_tensors(expected, fitted(habit, way, tmp_path / "fit"))


@pytest.fixture
def streaming() -> Iterator[Streaming]:
    model = stacked(linear)().to(DEVICE)
    settings = StreamingSettings(poison=True, on_device=True, max_active_layers=4)
    built = Streaming(
        model, blocks_of(model), optimizer_of(model), DEVICE, settings, lanes=slow_lane
    )
    yield built
    built.close()


def test_a_step_that_changes_nothing_fetches_nothing_more(streaming: Streaming) -> None:
    blocks = streaming.blocks
    x = blocks[0].module(batch_of(0))
    fetched = streaming.residency.fetches
    assert blocks[0].parameters[0].data.shape == blocks[0].views[0].shape
    blocks[0].module(x)
    assert streaming.residency.fetches == fetched


def test_after_an_error_inside_a_block_its_changed_copy_is_not_used(streaming: Streaming) -> None:
    block = streaming.blocks[0]
    given, weight = batch_of(0), block.parameters[0]
    with torch.no_grad():
        expected = block.module(given)

    def change(*_: Any) -> None:
        weight.data.mul_(2)

    handle = block.module.linear.register_forward_pre_hook(change)
    with pytest.raises(ModelError, match="changes a parameter"), torch.no_grad():
        block.module(given)
    handle.remove()
    with torch.no_grad():
        assert torch.equal(expected, block.module(given))


def test_the_class_of_parameters_is_as_before_after_the_last_close() -> None:
    def made() -> Streaming:
        model = stacked(linear)().to(DEVICE)
        settings = StreamingSettings()
        return Streaming(model, blocks_of(model), optimizer_of(model), DEVICE, settings)

    one, other = made(), made()
    one.close()
    assert nn.Parameter.data is torch.Tensor.data
    assert "data" in vars(nn.Parameter)
    other.close()
    assert "data" not in vars(nn.Parameter)
