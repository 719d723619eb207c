"""Laws of the norms: derivatives, bits of the eager modules, errors near torch's, what is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE
from torch.nn import functional
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from neaptide_kernels.norms import layer_norm, rms_norm
from neaptide_kernels.norms.checks import numbers
from neaptide_kernels.registry import KERNELS

pytestmark = pytest.mark.usefixtures("on_device")

FORMS = {"llama": (0.0, True), "gemma": (1.0, False), "torch": (0.0, False)}
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 300))
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def eager(form: str, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if form == "torch":
        return functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
    module: Any = {"llama": LlamaRMSNorm, "gemma": GemmaRMSNorm}[form](x.shape[-1])
    module.weight = None
    object.__setattr__(module, "weight", weight)
    del module._parameters["weight"]
    module.__dict__["weight"] = weight
    result: torch.Tensor = module(x)
    return result


def leaves(shape: tuple[int, ...], dtype: torch.dtype, count: int = 2) -> list[torch.Tensor]:
    sizes = [shape, *[shape[-1:]] * (count - 1)]
    return [
        numbers(size, place, DEVICE, dtype).requires_grad_() for place, size in enumerate(sizes)
    ]


def gradients(call: Any, given: list[torch.Tensor]) -> list[torch.Tensor]:
    result = call(*given)
    weights = numbers(result.shape, 9, DEVICE, result.dtype)
    return [result.detach(), *torch.autograd.grad(result, given, weights)]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=25, deadline=None)
@given(shape=SHAPES, dtype=DTYPES)
def test_on_a_cpu_the_bits_are_those_of_the_eager_module(
    form: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensors = leaves(shape, dtype)
    expected = gradients(lambda x, weight: eager(form, x, weight), tensors)
    with KERNELS.using(rms_norm="torch", rms_norm_backward="torch"):
        got = gradients(lambda x, w: rms_norm(x, w, 1e-6, *FORMS[form])[0], tensors)
    for right, result in zip(expected, got, strict=True):
        assert torch.equal(right, result)


@settings(max_examples=25, deadline=None)
@given(shape=SHAPES, dtype=DTYPES)
def test_layer_norm_is_that_of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, bias = leaves(shape, dtype, 3)
    expected = gradients(
        lambda *t: functional.layer_norm(t[0], shape[-1:], *t[1:]), [x, weight, bias]
    )
    with KERNELS.using(layer_norm="torch", layer_norm_backward="torch"):
        got = gradients(lambda *t: layer_norm(*t, 1e-5)[0], [x, weight, bias])
    for right, result in zip(expected, got, strict=True):
        if DEVICE.type == "cpu":
            assert torch.equal(right, result)
        else:
            torch.testing.assert_close(right, result)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("provider", ["reference", "torch"])
@pytest.mark.parametrize("form", FORMS)
def test_errors_are_those_of_torch(form: str, provider: str, dtype: torch.dtype) -> None:
    tensors = leaves((3, 50, 96), dtype)
    precise = [tensor.detach().double().requires_grad_() for tensor in tensors]

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = rms_norm(x, weight, 1e-6, *FORMS[form])[0]
        return y

    with KERNELS.using(rms_norm=provider, rms_norm_backward=provider):
        got = gradients(call, tensors)
        truth = gradients(call, precise)
    torchs = gradients(lambda x, weight: eager(form, x, weight), tensors)
    for right, ours, theirs in zip(truth, got, torchs, strict=True):
        off, allowed = ((each.double() - right).norm() / right.norm() for each in (ours, theirs))
        assert off <= 1.01 * float(allowed)


@pytest.mark.parametrize("weighed", [1, 0])
def test_gradients_are_those_that_torch_finds_numerically(weighed: int) -> None:
    x, weight, bias = leaves((2, 3, 7), torch.float64, 3)
    tensors = (x, weight) if weighed else (x,)
    for form in FORMS.values() if weighed else [(0.0, False)]:
        assert torch.autograd.gradcheck(
            lambda x, w=None, form=form: rms_norm(x, w, 1e-3, *form)[0], tensors
        )
    tensors = (x, weight, bias) if weighed else (x,)
    assert torch.autograd.gradcheck(lambda x, w=None, b=None: layer_norm(x, w, b, 1e-3)[0], tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_the_backward_keeps_the_input_and_a_number_a_row(form: str, dtype: torch.dtype) -> None:
    x, weight = leaves((4, 100, 64), dtype)

    def kept(call: Any) -> int:
        tensors: dict[int, torch.Tensor] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: tensors.setdefault(t.untyped_storage().data_ptr(), t), lambda t: t
        ):
            held = call()
        del held
        return sum(t.untyped_storage().nbytes() for t in tensors.values()) - weight.nbytes

    fused = kept(lambda: rms_norm(x, weight, 1e-6, *FORMS[form])[0])
    assert x.nbytes + 4 * 400 == fused
    others = kept(lambda: eager(form, x, weight))
    assert others >= 2 * x.nbytes
    assert others >= 3 * x.nbytes or dtype is torch.float32


def test_gradients_that_nobody_needs_are_not_computed() -> None:
    x, weight, bias = leaves((5, 6), torch.float32, 3)
    (got,) = torch.autograd.grad(rms_norm(x, weight.detach(), 1e-6)[0].sum(), x)
    (expected, _) = torch.autograd.grad(rms_norm(x, weight, 1e-6)[0].sum(), (x, weight))
    assert torch.equal(expected, got)
    (for_bias,) = torch.autograd.grad(layer_norm(x.detach(), weight, bias, 1e-5)[0].sum(), bias)
    assert torch.equal(for_bias, torch.full((6,), 5.0, device=DEVICE))


X = torch.zeros(2, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rms_norm(X, X[0, :7], 1e-6),
            r"weight is torch.float32 \[7\]; should be floating \[8\]",
        ),
        (lambda: rms_norm(X.long(), None, 1e-6), r"x is torch.int64 \[2, 8\]; should be floating"),
        (lambda: rms_norm(X[:, :0], None, 1e-6), r"x is torch.float32 \[2, 0\]; should be"),
        (lambda: rms_norm(X, X[0], 1e-6, 1.0, True), "offset=1.0, a weight is needed and narrow"),
        (lambda: layer_norm(X, None, X[0], 1e-6), "bias is torch.float32, there is no weight"),
        (lambda: layer_norm(X, X[0], X[0].half(), 1e-6), "bias is torch.float16, the weight is"),
    ],
)
def test_what_does_not_go_together_is_one_line(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
