"""Laws of gated units: derivatives, bits of eager modules, errors near torch's, what is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE

from neaptide_kernels.gated_unit import ACTIVATIONS, gated_unit
from neaptide_kernels.registry import KERNELS

pytestmark = pytest.mark.usefixtures("on_device")

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def leaves(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(sum(shape))
    drawn = torch.randn(2, *shape, generator=random, device="cpu") * 3
    return [each.to(device=DEVICE, dtype=dtype).requires_grad_() for each in drawn.unbind()]


def gradients(call: Any, given: list[torch.Tensor]) -> list[torch.Tensor]:
    result = call(*given)
    weights = torch.linspace(-2, 2, result.numel(), device=DEVICE).view_as(result).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, given, weights)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@settings(max_examples=25, deadline=None)
@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 30), st.integers(1, 400)), dtype=DTYPES)
def test_the_bits_are_those_of_the_eager_module(
    activation: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensors = leaves(shape, dtype)
    expected = gradients(lambda gate, up: ACTIVATIONS[activation](gate) * up, tensors)
    for provider in ("reference", "torch"):
        with KERNELS.using(gated_unit=provider, gated_unit_backward=provider):
            got = gradients(lambda gate, up: gated_unit(gate, up, activation), tensors)
        for right, result in zip(expected, got, strict=True):
            assert torch.equal(right, result)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gradients_are_those_that_torch_finds_numerically(activation: str) -> None:
    tensors = leaves((2, 3, 5), torch.float64)
    assert torch.autograd.gradcheck(lambda gate, up: gated_unit(gate, up, activation), tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_errors_are_those_of_torch(activation: str, dtype: torch.dtype) -> None:
    tensors = leaves((3, 50, 96), dtype)
    precise = [tensor.detach().double().requires_grad_() for tensor in tensors]
    got = gradients(lambda gate, up: gated_unit(gate, up, activation), tensors)
    truth = gradients(lambda gate, up: gated_unit(gate, up, activation), precise)
    for right, ours in zip(truth, got, strict=True):
        assert (ours.double() - right).norm() <= 2 * torch.finfo(dtype).eps * right.norm()


def test_the_backward_keeps_gate_and_up_only() -> None:
    gate, up = leaves((4, 10, 64), torch.bfloat16)

    def kept(call: Any) -> int:
        tensors: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: tensors.setdefault(t.data_ptr(), t.nbytes) and t, lambda t: t
        ):
            held = call()
        del held
        return sum(tensors.values())

    assert 2 * gate.nbytes == kept(lambda: gated_unit(gate, up, "silu"))
    assert 3 * gate.nbytes == kept(lambda: torch.nn.functional.silu(gate) * up)


X = torch.zeros(2, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gated_unit(X, X, "slu"), "no activation 'slu', did you mean 'silu'|silu"),
        (lambda: gated_unit(X, X[:1], "silu"), r"up is torch.float32 \[1, 8\] on cpu; should be"),
        (lambda: gated_unit(X.long(), X.long(), "silu"), "should be floating and alike"),
    ],
)
def test_what_does_not_go_together_is_one_line(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
