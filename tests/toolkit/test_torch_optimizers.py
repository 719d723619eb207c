"""The optimizer of `[optimizer]`: fused where that never fails, else as torch builds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE, tiny_trainer
from torch import nn, optim

from neaptide_toolkit.testing.parting import same_bits
from neaptide_toolkit.torch_optimizers import build, check

if TYPE_CHECKING:
    from pathlib import Path

KINDS: dict[str, Any] = {
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "rmsprop": optim.RMSprop,
}
FUSED = {"adam", "adamw"}
CHOSEN: list[dict[str, Any]] = [{"fused": False}, {"foreach": True}, {"foreach": False}]


class Net(nn.Module):
    """Parameters of several sizes, of which the last one gets no gradient in the first step."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in {"a": (33, 5), "b": (), "c": (7,), "late": (40,)}.items():
            value = torch.randn(shape, generator=generator, dtype=torch.float32)
            setattr(self, name, nn.Parameter(value.to(DEVICE, dtype)))


def stepped(model: nn.Module, optimizer: optim.Optimizer) -> list[torch.Tensor]:
    """Return the weights after three steps."""
    generator = torch.Generator().manual_seed(1)
    for step in range(3):
        for name, parameter in model.named_parameters():
            gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if step or name != "late":
                parameter.grad = gradient.to(parameter)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(map(same_bits, ours, theirs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", KINDS)
def test_the_steps_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    ours, theirs = Net(dtype), Net(dtype)
    optimizer = build(ours, name, 0.01, {})
    options = {"fused": True} if name in FUSED else {}
    assert options.get("fused") == optimizer.param_groups[0].get("fused")
    expected = KINDS[name](theirs.parameters(), lr=0.01, **options)
    assert same(stepped(ours, optimizer), stepped(theirs, expected))


@pytest.mark.parametrize("options", CHOSEN, ids=str)
@pytest.mark.parametrize("name", [*KINDS][:4])
def test_an_option_chooses_the_form(name: str, options: dict[str, Any]) -> None:
    ours, theirs = Net(), Net()
    optimizer = build(ours, name, 0.01, options)
    assert not optimizer.param_groups[0]["fused"]
    expected = KINDS[name](theirs.parameters(), lr=0.01, **options)
    assert same(stepped(ours, optimizer), stepped(theirs, expected))


def test_differentiable_and_capturable_stay_as_torch_has_them() -> None:
    for options in ({"differentiable": True}, {"capturable": True}):
        assert build(Net(), "adamw", 0.01, options).param_groups[0]["fused"] is None


class Own(torch.Tensor):
    """A tensor of a class of its own."""


UNFIT: dict[str, Any] = {
    "complex": lambda: torch.ones(4, 3, dtype=torch.complex64, device=DEVICE),
    "transposed": lambda: torch.ones(3, 4, device=DEVICE).t(),
    "a slice": lambda: torch.ones(4, 6, device=DEVICE)[:, ::2],
    "a class of its own": lambda: torch.ones(4, 3, device=DEVICE).as_subclass(Own),
    "meta": lambda: torch.ones(4, 3, device="meta"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_one_parameter_that_torch_cannot_fuse_makes_the_optimizer_plain(kind: str) -> None:
    model = Net()
    model.late = nn.Parameter(UNFIT[kind]())
    assert build(model, "adamw", 0.01, {}).param_groups[0]["fused"] is None


def test_weights_that_are_not_contiguous_train_as_contiguous_ones() -> None:
    found = []
    for strides in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Conv2d(3, 5, 3, bias=False).to(memory_format=strides)
        found.append(stepped(model, build(model, "adamw", 0.01, {}))[0])
    torch.testing.assert_close(*found)


def test_the_check_tries_what_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    step = optim.AdamW.step

    def noted(self: Any, closure: Any = None) -> Any:
        tried.append(self.param_groups[0]["fused"])
        return step(self, closure)

    monkeypatch.setattr(optim.AdamW, "step", noted)
    check("adamw", 0.01, {})
    check("adamw", 0.01, {"fused": False})
    assert [True, False] == tried


@pytest.mark.parametrize("before", [True, False], ids=["fused", "plain"])
def test_a_checkpoint_goes_on_in_the_form_it_was_saved_in(tmp_path: Path, *, before: bool) -> None:
    given: dict[str, Any] = {"optimizer": None}
    options = {} if before else {"fused": False}
    trainer, batches = tiny_trainer({"optimizer": {"options": options}}, **given)
    with trainer:
        for batch in batches[:4]:
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
        for batch in batches[4:8]:
            trainer.step(batch)
        expected = [one.detach().clone() for one in trainer.model.parameters()]
    for other in ({}, {"fused": False}):
        trainer, batches = tiny_trainer({"optimizer": {"options": other}}, **given)
        with trainer:
            trainer.load(tmp_path / "saved", allow_changes=True)
            for batch in batches[4:8]:
                trainer.step(batch)
            assert same(expected, [one.detach() for one in trainer.model.parameters()])
