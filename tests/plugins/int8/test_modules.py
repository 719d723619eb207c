"""Every layer of torch.nn computes with the decoded values, whoever reads its weights."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
import torch
from support import DEVICE
from torch import nn
from zoo_layers import LAYERS, Residual, Stack
from zoo_nets import NETS

from neaptide_plugins.int8.held_weights import HeldWeights, Quantizer
from neaptide_plugins.int8.scheme import Scheme, WeightCodes, encode
from neaptide_plugins.int8.targets import Target, find
from neaptide_plugins.int8.weight import Int8Weight, computing

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.usefixtures("on_device")

SCHEME = Scheme("channel", 64, True)
QUANTIZER = Quantizer(scheme=SCHEME, calibration=None, percentile=99.9)


class InPlace:
    """The weights are where the module has them, and stay there."""

    def lent(self, target: Target) -> AbstractContextManager[torch.Tensor]:
        return nullcontext(target.parameter.detach())

    def evict(self, target: Target) -> Callable[[], None]:
        return lambda: None

    def stored(self, target: Target, codes: WeightCodes) -> WeightCodes:
        return codes


def holding(model: nn.Module, quantizer: Quantizer = QUANTIZER) -> HeldWeights:
    return HeldWeights(find(model, ("*",), (), quantizer.scheme), quantizer, DEVICE, InPlace())


def decoded_in_place(model: nn.Module) -> nn.Module:
    """Return a copy whose weights are what their codes stand for: the reference."""
    model = copy.deepcopy(model)
    for target in find(model, ("*",), (), SCHEME):
        value = encode(target.parameter, SCHEME, target.channel).decode(target.parameter.dtype)
        with torch.no_grad():
            target.parameter.copy_(value)
    return model


def check(model: nn.Module, x: torch.Tensor) -> None:
    model = model.eval()
    before = copy.deepcopy(model.state_dict())
    identities = [id(parameter) for parameter in model.parameters()]
    held = holding(model)
    with torch.no_grad():
        torch.manual_seed(1)
        expected = decoded_in_place(model)(x)
        held.hold()
        torch.manual_seed(1)
        actual = model(x)
        # Kernels may sum in another order than the module's fused path.
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
        assert any(isinstance(found, Int8Weight) for found in model.parameters())
        held.release()
    assert identities == [id(parameter) for parameter in model.parameters()]
    now = model.state_dict()
    assert before.keys() == now.keys()
    for name, value in before.items():
        if "_u" not in name.rpartition(".")[2] and "_v" not in name.rpartition(".")[2]:
            torch.testing.assert_close(now[name], value, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", sorted(LAYERS.keys() - {"old spectral norm"}))  # no deep copies
def test_layers(name: str) -> None:
    make, call = LAYERS[name]
    torch.manual_seed(0)
    model = Stack(lambda: Residual(make(), call), count=2)
    x = torch.randn(6, 5, 8)
    model(x)  # lazy layers get their shapes
    check(model, x)


@pytest.mark.parametrize("name", NETS)
def test_nets(name: str) -> None:
    torch.manual_seed(0)
    check(NETS[name](), torch.randn(6, 5, 8))


def test_it_looks_like_the_weight() -> None:
    conv = nn.Conv2d(4, 8, 3).bfloat16().to(memory_format=torch.channels_last)
    weight = Int8Weight(encode(conv.weight, SCHEME), conv.weight, DEVICE)
    assert (conv.weight.shape, conv.weight.dtype) == (weight.shape, weight.dtype)
    assert conv.weight.stride() == weight.stride() == weight.decoded().stride()
    assert not weight.requires_grad
    assert "Int8Weight" in repr(weight)


def test_reading_without_computing_gives_the_weight_itself() -> None:
    layer = nn.Linear(8, 8)
    full = layer.weight.detach().clone()
    held = holding(layer)
    held.hold()
    assert torch.equal(full, layer.state_dict()["weight"])
    copied = copy.deepcopy(layer)
    assert isinstance(copied.weight, nn.Parameter)
    assert torch.equal(full, copied.weight)
    assert isinstance(layer.weight, nn.Parameter)
    with computing():
        detached = layer.weight.detach() + 0
    assert torch.equal(layer.weight.decoded(), detached)
    held.release()


def test_writing_to_it_is_refused_in_one_line() -> None:
    layer = nn.Linear(8, 8)
    held = holding(layer)
    held.hold()
    with torch.no_grad(), pytest.raises(RuntimeError, match="a weight that is int8 in this phase"):
        layer.weight.mul_(2.0)
    with torch.no_grad(), pytest.raises(RuntimeError, match="a weight that is int8 in this phase"):
        torch.add(torch.ones(8, 8), 1.0, out=layer.weight)
    with computing(), pytest.raises(RuntimeError, match="a weight that is int8 in this phase"):
        layer.weight.data.clamp_(-1.0, 1.0)
    with pytest.raises(RuntimeError, match="a weight that is int8 in this phase"):
        layer.weight.data = torch.ones(8, 8)
    with pytest.raises(RuntimeError, match="has no address"):
        layer.weight.data_ptr()
    held.release()


def test_only_what_has_changed_is_encoded_anew() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    held = holding(model)
    held.hold()
    first, second = (layer._parameters["weight"].codes for layer in model)
    with torch.no_grad():
        held.targets[1].parameter.mul_(2.0)
    held.outdate("1.weight")
    held.outdate("nobody's")
    held.refresh()
    assert model[0]._parameters["weight"].codes is first
    assert torch.equal(2 * second.scale, model[1]._parameters["weight"].codes.scale)
    held.release()


@pytest.mark.parametrize("fails_at", [0, 1])
def test_what_fails_half_way_leaves_the_model_as_it_was(fails_at: int) -> None:
    class Failing(InPlace):
        def evict(self, target: Target) -> Callable[[], None]:
            if target.name == f"{fails_at}.weight":
                raise MemoryError
            return lambda: None

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    parameters = list(model.parameters())
    held = HeldWeights(find(model, ("*",), (), SCHEME), QUANTIZER, DEVICE, Failing())
    with pytest.raises(MemoryError):
        held.hold()
    assert not held.held
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))


def test_one_that_cannot_come_back_keeps_no_other_away() -> None:
    failing = {"1.weight"}

    class Failing(InPlace):
        def evict(self, target: Target) -> Callable[[], None]:
            def back() -> None:
                if target.name in failing:
                    raise MemoryError

            return back

    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    held = HeldWeights(find(model, ("*",), (), SCHEME), QUANTIZER, DEVICE, Failing())
    held.hold()
    with pytest.raises(MemoryError):
        held.release()
    assert [False, True, False] == [isinstance(layer.weight, Int8Weight) for layer in model]
    failing.clear()
    held.release()
    assert not held.held
    assert type(model[1].weight) is nn.Parameter


def test_errors_are_measured_where_asked_for() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight.zero_()
        model[0].weight[:, 3] = 50.0
    held = holding(model)
    held.hold(measured=True)
    held.release()
    full = model[0].weight.detach()
    decoded = encode(full, SCHEME).decode(torch.float32)
    assert pytest.approx(float((decoded - full).norm() / full.norm())) == held.errors["0.weight"]
    assert 0.0 == held.errors["1.weight"]


def test_autocast_lowers_the_decoded_weight() -> None:
    layer = nn.Linear(8, 8)
    held = holding(layer)
    x = torch.randn(3, 8)
    held.hold()
    with torch.no_grad(), torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        lowered = layer(x)
    assert torch.bfloat16 == lowered.dtype
    held.release()
