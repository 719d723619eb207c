"""`.data` of a streamed weight in other threads, compiled code, and modes of torch."""

from __future__ import annotations

import gc
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from data_changes import WAYS, fitted, streamed
from law_loops import DEVICE, Habit, batch, loss_of, plain, start
from streamed import blocks_of, optimizer_of
from support import same_tensors
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from zoo_blocks import linear, stacked

from neaptide import HybridTrainer, ModelError
from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming
from neaptide_plugins.layer_streaming.weights.telling import leave, listen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

each_way = pytest.mark.parametrize("way", WAYS)
pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about itself while it compiles


def in_thread(action: Callable[[], Any]) -> Any:
    """Return what `action` returns in another thread, or its error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(action())
        except ModelError as error:
            found.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


class Read(torch.optim.SGD):
    """During each step, another thread reads the weights."""

    separable = True
    watched: ClassVar[list[nn.Parameter]] = []

    def step(self, closure: Any = None) -> Any:
        in_thread(lambda: [float(one.data.sum()) for one in self.watched])
        return super().step(closure)


@each_way
def test_a_thread_may_read_while_an_update_runs(way: str, tmp_path: Path) -> None:
    def prepare(net: Any) -> Any:
        Read.watched[:] = net.blocks.parameters()
        return net

    habit = Habit("read", optimizer=lambda ps: Read(ps, lr=0.1), prepare=prepare)
    try:
        expected = plain(habit).weights
        assert same_tensors(expected, streamed(habit, way, tmp_path / "own"))
        assert same_tensors(expected, fitted(habit, way, tmp_path / "fit"))
    finally:
        Read.watched.clear()


@each_way
def test_a_thread_reads_the_weight_itself_while_its_block_runs(way: str, tmp_path: Path) -> None:
    """Not a slot, which will have the weights of another block."""
    read: list[torch.Tensor] = []

    def prepare(net: Any) -> Any:
        linear = net.blocks[1].linear

        def look(*_: Any) -> None:
            if linear.weight.requires_grad and len(read) < 1:
                read.append(in_thread(lambda: linear.weight.data))

        linear.register_forward_pre_hook(look)
        return net

    loop = start(Habit("look", prepare=prepare))
    before = loop.weight.detach().cpu().clone()
    config = {"plugins": {"layer-streaming": WAYS[way]}, "run": {"dir": str(tmp_path)}}
    with HybridTrainer(loop.model, loop.optimizer, loss_fn=loss_of, config=config) as trainer:
        trainer.evaluate([batch(0)])
        assert torch.equal(before, read[0].cpu())
        trainer.step(batch(1))
        assert torch.equal(loop.weight.data, read[0])


def test_a_thread_that_sets_data_inside_a_step_is_refused(tmp_path: Path) -> None:
    found: list[Any] = []

    def loss_fn(model: Any, given: Any) -> torch.Tensor:
        weight = model.blocks[1].linear.weight
        found.append(in_thread(lambda: setattr(weight, "data", weight.data * 0.5)))
        return loss_of(model, given)

    habit = Habit("set", loss_fn=loss_fn)
    usual = Habit("usual")
    expected, streamed_weights = plain(usual).weights, streamed(habit, "device", tmp_path)
    assert isinstance(found[0], ModelError)
    assert "\n" not in str(found[0])
    assert same_tensors(expected, streamed_weights)


class Scaled(nn.Module):
    """Changes its weight by a factor that is 1 at first."""

    def __init__(self, linear: nn.Linear, norm: nn.Module) -> None:
        super().__init__()
        self.linear, self.norm = linear, norm
        self.register_buffer("factor", torch.ones((), device=DEVICE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.weight.data.mul_(self.factor)
        found: torch.Tensor = x + self.linear(self.norm(x))
        return found


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("way", ["cpu", "device", "device, graph", "in backward"])
def test_a_compiled_block_that_changes_its_data_is_refused(
    way: str, *, warm: bool, tmp_path: Path
) -> None:
    """Compiled code does not read the property, so the weights are compared each time."""
    torch._dynamo.reset()

    def prepare(net: Any) -> Any:
        for place, block in enumerate(net.blocks):
            net.blocks[place] = Scaled(block.linear, block.norm)
            net.blocks[place].compile(backend="eager")
            if warm:
                net.blocks[place](batch(0)["x"])
        return net

    loop = start(Habit("compiled", prepare=prepare))
    config = {"plugins": {"layer-streaming": WAYS[way]}, "run": {"dir": str(tmp_path)}}
    trainer = HybridTrainer(loop.model, loop.optimizer, loss_fn=loss_of, config=config)
    with trainer:
        trainer.step(batch(0))
        trainer.step(batch(1))
        loop.model.blocks[2].factor.fill_(0.5)
        with pytest.raises(ModelError, match=r"block 'blocks.2' changes a parameter"):
            trainer.step(batch(2))


@each_way
def test_compiled_code_before_the_forward_that_changes_data_counts(
    way: str, tmp_path: Path
) -> None:
    @torch.compile(backend="eager")
    def halve(weight: nn.Parameter) -> None:
        weight.data.mul_(0.5)

    def loss_fn(model: Any, given: Any) -> torch.Tensor:
        if model.training:
            halve(model.blocks[2].linear.weight)
        return loss_of(model, given)

    habit = Habit("halved", loss_fn=loss_fn)
    torch._dynamo.reset()
    expected = plain(habit).weights
    assert same_tensors(expected, streamed(habit, way, tmp_path / "own"))
    assert same_tensors(expected, fitted(habit, way, tmp_path / "fit"))


class Another:
    """Listens as another run does that goes on."""

    def read(self, _: nn.Parameter) -> None: ...

    def will_set(self, _: nn.Parameter) -> None: ...


@pytest.mark.parametrize("way", ["device, resident", "in backward"])
def test_compiled_code_that_changes_data_counts_beside_another_run(
    way: str, tmp_path: Path
) -> None:
    another = Another()
    listen(another)
    try:
        test_compiled_code_before_the_forward_that_changes_data_counts(way, tmp_path)
    finally:
        leave(another)


@each_way
def test_data_may_be_read_under_vmap_and_in_a_mode(way: str, tmp_path: Path) -> None:
    def loss_fn(model: Any, given: Any) -> torch.Tensor:
        weight = model.blocks[1].linear.weight
        scale = torch.func.vmap(lambda x: x * weight.data.sum().to(x.device))(given["x"][0])
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert weight.data.shape == (8, 8)
        return loss_of(model, given) * (1 + scale.square().mean())

    def prepare(net: Any) -> Any:
        def read(module: Any, *_: Any) -> None:
            with FakeTensorMode(allow_non_fake_inputs=True):
                assert module.weight.data.shape == (8, 8)
            torch.func.vmap(lambda x: x * module.weight.data.sum())(torch.ones(2, device=DEVICE))

        net.blocks[1].linear.register_forward_pre_hook(read)
        return net

    habit = Habit("modes", loss_fn=loss_fn, prepare=prepare)
    expected = plain(habit).weights
    assert same_tensors(expected, streamed(habit, way, tmp_path / "own"))
    assert same_tensors(expected, fitted(habit, way, tmp_path / "fit"))


def test_the_class_of_parameters_is_as_before_after_a_model_that_nobody_closed() -> None:
    def built() -> None:
        model = stacked(linear)().to(DEVICE)
        Streaming(model, blocks_of(model), optimizer_of(model), DEVICE, StreamingSettings())
        assert "data" in vars(nn.Parameter)

    built()
    gc.collect()
    assert "data" not in vars(nn.Parameter)


def test_the_class_of_parameters_is_as_before_if_a_close_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = stacked(linear)().to(DEVICE)
    made = Streaming(model, blocks_of(model), optimizer_of(model), DEVICE, StreamingSettings())
    monkeypatch.setattr(made.residency, "evict", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.close()
    assert "data" not in vars(nn.Parameter)


def test_the_error_of_a_step_is_not_hidden_by_the_look_at_its_end(
    tmp_path: Path,
) -> None:
    def loss_fn(model: Any, given: Any) -> torch.Tensor:
        weight = model.blocks[1].linear.weight
        weight.data = torch.zeros(3, 3)
        msg = "no memory is left"
        raise torch.OutOfMemoryError(msg)

    loop = start(Habit("out of memory", loss_fn=loss_fn))
    config = {"plugins": {"layer-streaming": WAYS["device"]}, "run": {"dir": str(tmp_path)}}
    trainer = HybridTrainer(loop.model, loop.optimizer, loss_fn=loss_fn, config=config)
    with trainer, pytest.raises(torch.OutOfMemoryError, match="no memory is left") as raised:
        trainer.step(batch(0))
    assert any("float32 of shape [3, 3]" in note for note in raised.value.__notes__)


def test_the_error_of_an_update_in_ram_is_not_hidden_by_the_look_at_its_end() -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.param_groups[0]["params"][0].data = torch.zeros(3, 3)
            msg = "no memory is left"
            raise torch.OutOfMemoryError(msg)

    model = stacked(linear)().to(DEVICE)
    optimizer = Fails(model.blocks.parameters(), lr=0.1)
    made = Streaming(model, blocks_of(model), optimizer, DEVICE, StreamingSettings())
    with pytest.raises(torch.OutOfMemoryError, match="no memory is left") as raised:
        made.step()
    assert any("float32 of shape [3, 3]" in note for note in raised.value.__notes__)
    made.close()


def test_blocks_are_searched_for_new_tensors_only_after_one_was_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The search walks over the weights of all blocks."""
    searched: list[int] = []
    module = "neaptide_plugins.layer_streaming.weights.touched.adopted"
    monkeypatch.setattr(module, lambda *_: searched.append(1) or [])

    def loss_fn(model: Any, given: Any) -> torch.Tensor:
        for weight in model.blocks.parameters():
            weight.data.sum()
        return loss_of(model, given)

    fitted(Habit("reading", loss_fn=loss_fn), "device", tmp_path)
    assert searched == []
