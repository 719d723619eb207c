"""Layers with a lowered backward: torch's own forward, gradients of the right kind, any use."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D

from neaptide_plugins.low_precision_backward.linear import LowBackward
from neaptide_plugins.low_precision_backward.products import (
    Seeds,
    fp8_gradient_product,
    int8_product,
)
from neaptide_toolkit.gradient_error import compare
from neaptide_toolkit.low_precision import intercepting

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("on_device")

BOUNDS = {"int8": 0.02, "fp8": 0.1}


def lowering(*modules: nn.Module, dtype: str = "int8", min_rows: int = 1) -> LowBackward:
    weights = {
        parameter: name
        for module in modules
        for name, parameter in module.named_parameters()
        if parameter.ndim == 2
    }
    multiply = partial(int8_product, seeds=Seeds(0)) if dtype == "int8" else fp8_gradient_product
    return LowBackward(weights, multiply, min_rows)


def taken(
    call: Callable[[], torch.Tensor], tensors: list[torch.Tensor], handler: LowBackward | None
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Return the output and the gradients of its mean square."""
    if handler is None:
        output = call()
    else:
        with intercepting(handler):
            output = call()
    return output, list(
        torch.autograd.grad(output.float().square().mean(), tensors, allow_unused=True)
    )


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(32, 48),
        lambda: nn.Linear(32, 48, bias=False),
        lambda: Conv1D(48, 32),
        lambda: nn.Linear(32, 48).bfloat16(),
        lambda: nn.Linear(32, 48).half(),
    ],
    ids=["linear", "without-bias", "conv1d", "bf16", "fp16"],
)
def test_forward_is_torchs_own_and_gradients_are_close(
    make: Callable[[], nn.Module], autocast: torch.dtype | None, dtype: str
) -> None:
    torch.manual_seed(0)
    module = make()
    x = torch.randn(3, 20, 32, dtype=next(module.parameters()).dtype, requires_grad=True)
    tensors = [x, *module.parameters()]
    handler = lowering(module, dtype=dtype)
    with torch.autocast(
        DEVICE.type, dtype=autocast or torch.bfloat16, enabled=autocast is not None
    ):
        plain, exact = taken(lambda: module(x), tensors, None)
        output, low = taken(lambda: module(x), tensors, handler)
    assert (plain.dtype, True) == (output.dtype, torch.equal(plain, output))
    assert (1, 0) == (handler.low, handler.exact)
    for tensor, one, other in zip(tensors, exact, low, strict=True):
        assert one is not None
        assert other is not None
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if tensor.ndim == 1:
            assert torch.equal(one, other), "the gradient of a bias is exact"
        else:
            assert 0 < compare([one], [other]).relative < BOUNDS[dtype]


def test_what_needs_no_gradient_gets_none() -> None:
    layer = nn.Linear(32, 32)
    layer.weight.requires_grad_(False)
    x = torch.randn(8, 32, requires_grad=True)
    _, (of_x, of_weight, of_bias) = taken(
        lambda: layer(x) + layer.weight.sum() * 0, [x, x, layer.bias], lowering(layer)
    )
    assert torch.equal(of_x, of_weight)
    assert of_bias is not None
    handler = lowering(layer)
    layer.bias.requires_grad_(False)
    with intercepting(handler):
        assert not layer(x.detach()).requires_grad
        with torch.no_grad():
            layer(x)
    assert (0, 0) == (handler.low, handler.exact)
    trained = nn.Linear(32, 32)
    _, gradients = taken(lambda: trained(x.detach()), list(trained.parameters()), lowering(trained))
    assert all(gradient is not None for gradient in gradients)


def test_few_rows_and_other_weights_stay_exact() -> None:
    layer, other = nn.Linear(32, 32), nn.Linear(32, 32)
    handler = lowering(layer, min_rows=9)
    x = torch.randn(8, 32)
    tensors = [*layer.parameters(), *other.parameters()]
    _, exact = taken(lambda: other(layer(x)), tensors, None)
    _, low = taken(lambda: other(layer(x)), tensors, handler)
    assert compare(exact, low).squared == 0
    assert (0, 1, {"weight"}) == (handler.low, handler.exact, handler.met)
    empty = torch.randn(0, 32)
    with intercepting(lowering(layer, min_rows=1)):
        layer(empty).sum().backward()
    assert torch.equal(torch.zeros(32, 32), layer.weight.grad)


def test_a_weight_used_twice_and_a_graph_run_twice() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 32)
    x = torch.randn(64, 32)

    def twice() -> torch.Tensor:
        return layer(functional.gelu(layer(x)))

    _, exact = taken(twice, [layer.weight], None)
    handler = lowering(layer)
    with intercepting(handler):
        loss = twice().square().mean()
    (first,) = torch.autograd.grad(loss, [layer.weight], retain_graph=True)
    (second,) = torch.autograd.grad(loss, [layer.weight])
    assert handler.low == 2
    assert not torch.equal(first, second), "each backward rounds anew"
    assert all(0 < compare(exact, [one]).relative < 0.02 for one in (first, second))


def test_a_second_derivative_is_refused() -> None:
    layer = nn.Linear(32, 32)
    x = torch.randn(8, 32, requires_grad=True)
    with intercepting(lowering(layer)):
        loss = layer(x).square().sum()
    with pytest.raises(RuntimeError, match="product with 'weight' cannot be differentiated"):
        torch.autograd.grad(loss, [x], create_graph=True)


def test_what_is_compiled_passes_by() -> None:
    layer = nn.Linear(32, 32)
    handler = lowering(layer)
    x = torch.randn(8, 32)
    expected = layer(x)
    with intercepting(handler):
        found = torch.compile(layer, backend="eager")(x)
    assert torch.equal(expected, found)
    assert (0, set()) == (handler.low, handler.met)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own use
def test_what_torch_func_and_forward_mode_trace_passes_by() -> None:
    layer = nn.Linear(32, 32)
    handler = lowering(layer)
    x = torch.randn(8, 32)
    with intercepting(handler):
        assert torch.allclose(layer(x), torch.func.vmap(layer)(x), atol=1e-6)
    assert handler.low == 1
    with intercepting(handler), forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, x))).tangent
        assert torch.allclose(x @ layer.weight.t(), tangent, atol=1e-6)
    assert handler.low == 1


@pytest.mark.parametrize("kind", ["reentrant", "not-reentrant"])
def test_torchs_checkpoint_computes_again_inside_the_backward(kind: str) -> None:
    reentrant = kind == "reentrant"
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    x = torch.randn(16, 32, requires_grad=True)
    handler = lowering(layer)

    def run(call: Callable[[], torch.Tensor]) -> list[torch.Tensor | None]:
        layer.zero_grad()
        handler.multiply = partial(int8_product, seeds=Seeds(0))
        with intercepting(handler):
            call().square().mean().backward()
        return [parameter.grad for parameter in layer.parameters()]

    plain = run(lambda: layer(x))
    assert handler.low == 2
    again = run(lambda: checkpoint(layer, x, use_reentrant=reentrant))
    assert handler.low == (4 if reentrant else 6)
    assert compare(plain, again).squared == 0


def test_attention_of_torch_is_lowered_inside() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(32, 4, batch_first=True)
    x = torch.randn(2, 16, 32)
    handler = lowering(attention)
    _, exact = taken(lambda: attention(x, x, x)[0], list(attention.parameters()), None)
    _, low = taken(lambda: attention(x, x, x)[0], list(attention.parameters()), handler)
    assert {"in_proj_weight", "out_proj.weight"} == handler.met
    assert 0 < compare(exact, low).relative < 0.02


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_a_gradient_that_is_not_finite_stays_so(dtype: str) -> None:
    layer = nn.Linear(32, 32)
    x = torch.randn(8, 32, requires_grad=True)
    with intercepting(lowering(layer, dtype=dtype)):
        output = layer(x)
    gradient = torch.ones(8, 32)
    gradient[2, 3] = torch.inf
    output.backward(gradient)
    for found in (x.grad, layer.weight.grad, layer.bias.grad):
        assert not found.isfinite().all()


def test_autocasts_cache_holds_no_cast_without_a_graph() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 32, bias=False)
    x = torch.randn(8, 32)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        with intercepting(lowering(layer)):
            layer(x)
        layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_what_was_put_in_torchs_place_is_taken_out_again() -> None:
    linear, addmm = functional.linear, torch.addmm
    layer = nn.Linear(32, 32)
    seen: list[Any] = []

    def outer(product: Any) -> None:
        seen.append("outer")

    def failing(product: Any) -> None:
        msg = "out of luck"
        raise ValueError(msg)

    with intercepting(outer), pytest.raises(ValueError, match="luck"), intercepting(failing):
        layer(torch.randn(4, 32))
    assert seen == []
    with intercepting(outer), intercepting(lowering(layer)):
        layer(torch.randn(4, 32))
    assert seen == ["outer"], "the inner handler asks the outer one"
    assert linear is functional.linear
    assert addmm is torch.addmm
