"""Frozen weights in fewer bits: their values, gradients and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neaptide_plugins.lora.held_weights import HeldLinear, hold
from neaptide_plugins.lora.targets import all_linear
from neaptide_toolkit.testing.allocations import peak_of

BASES = ("bf16", "int8", "nf4")
WORST = {"bf16": 2**-8, "int8": 0.5 / 127 + 2**-8, "nf4": 0.25}
"""Error of a weight, as a part of the largest weight."""
BYTES = {"bf16": 2.0, "int8": 1.0, "nf4": 0.5}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def layer(dtype: torch.dtype = torch.float32, width: int = 96, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(width, 2 * width, dtype=dtype, bias=bias).requires_grad_(False)


def held(one: nn.Module, base: Any) -> nn.Module:
    model = nn.Sequential(one)
    assert 1 == hold(model, all_linear(model), base)
    return model[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("base", BASES)
def test_the_weight_is_near_and_the_output_is_that_of_the_weight(
    base: str, dtype: torch.dtype
) -> None:
    plain = layer(dtype)
    expected = plain.weight.clone()
    one = held(plain, base)
    assert isinstance(one, HeldLinear)
    assert one.weight.dtype == dtype
    assert (one.weight - expected).abs().max() <= WORST[base] * expected.abs().max()
    x = torch.randn(3, 5, 96, dtype=dtype, requires_grad=True)
    wanted = nn.functional.linear(x, one.weight, one.bias)
    out = one(x)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(out.sum(), x), torch.autograd.grad(wanted.sum(), x)
    )


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_nf4_is_that_of_bitsandbytes_to_the_bit(dtype: torch.dtype) -> None:
    import bitsandbytes as bnb

    plain = layer(dtype)
    theirs = bnb.nn.Linear4bit(96, 192, quant_type="nf4", compress_statistics=True)
    weight = bnb.nn.Params4bit(
        plain.weight.clone(), requires_grad=False, quant_type="nf4", module=theirs
    )
    theirs.weight, theirs.bias = weight, nn.Parameter(plain.bias.clone())
    theirs.to("cpu")
    x = torch.randn(3, 5, 96, dtype=dtype, requires_grad=True)
    ours, expected = held(plain, "nf4")(x), theirs(x)
    assert torch.equal(expected, ours)
    back = torch.randn_like(ours)
    assert torch.equal(*(torch.autograd.grad(one, x, back)[0] for one in (ours, expected)))


@pytest.mark.parametrize("base", BASES)
def test_what_is_held_is_small_and_frozen(base: str) -> None:
    one = held(layer(width=512), base)
    assert not any(parameter.requires_grad for parameter in one.parameters())
    assert not [*one.buffers()]
    nbytes = sum(each.nbytes for name, each in one.named_parameters() if name != "bias")
    assert nbytes == pytest.approx(512 * 1024 * BYTES[base], rel=0.04)


@pytest.mark.parametrize("base", BASES)
def test_no_decoded_weight_waits_for_the_backward(base: str) -> None:
    width, deep = 256, 6
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(deep)))
    hold(model.requires_grad_(False), all_linear(model), base)
    x = torch.randn(1, width, requires_grad=True)
    model(x).sum().backward()
    weight = width * width * 4
    assert peak_of(lambda: model(x).sum().backward()) < 3 * weight


@pytest.mark.parametrize("base", BASES)
def test_autocast_computes_in_its_dtype(base: str) -> None:
    one = held(layer(), base)
    with torch.autocast("cpu", torch.bfloat16):
        assert one(torch.randn(2, 96)).dtype == torch.bfloat16


def test_weights_of_several_modules_stay_as_they_are() -> None:
    tied = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    tied[0].weight = tied[1].weight
    assert 1 == hold(tied, all_linear(tied), "int8")
    assert [type(one) for one in tied[:2]] == [nn.Linear, nn.Linear]
    assert isinstance(tied[2], HeldLinear)


def test_a_base_that_holds_nothing_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].weight = model[1].weight
    with pytest.raises(ValueError, match="base = 'int8' finds no weight of a linear layer"):
        hold(model, all_linear(model), "int8")
