"""Laws of RoPE: derivatives, the bits of eager models, strides, what is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE
from transformers.models.llama.modeling_llama import rotate_half
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb

from neaptide_kernels.rope import rope
from neaptide_kernels.rope.op import inputs

pytestmark = pytest.mark.usefixtures("on_device")


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 5)] * 3, st.integers(2, 40)),
    share=st.floats(0, 1),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_the_bits_are_those_of_eager_models(
    shape: tuple[int, ...], share: float, dtype: torch.dtype
) -> None:
    width = max(1, int(share * shape[-1] / 2)) * 2
    x, cos, sin = inputs(DEVICE, dtype, shape, width)
    x = x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    expected, _ = apply_rotary_pos_emb(x, x, cos[0], sin[0])
    got = rope(x, cos, sin)
    assert torch.equal(expected, got)
    assert x.stride() == got.stride()
    weights = torch.linspace(-1, 1, x.numel(), device=DEVICE).view(shape).to(dtype)
    right, result = (torch.autograd.grad(each, x, weights)[0] for each in (expected, got))
    assert torch.equal(right, result)


def test_gradients_are_those_that_torch_finds_numerically() -> None:
    x, cos, sin = inputs(DEVICE, torch.float64, (1, 2, 3, 8), 6)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rope(x, cos, sin), x)
    assert torch.autograd.gradgradcheck(lambda x: rope(x, cos, sin), x)


def test_the_backward_keeps_the_tables_only() -> None:
    x, cos, sin = inputs(DEVICE, torch.float32, (2, 4, 16, 8), 8)
    x.requires_grad_()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        held = rope(x, cos, sin)
    del held
    assert {cos.data_ptr(), sin.data_ptr()} == {tensor.data_ptr() for tensor in kept}


def test_turning_by_the_transposed_matrix_turns_back() -> None:
    x, cos, sin = inputs(DEVICE, torch.float64, (2, 2, 5, 8), 8)
    cos, sin = (torch.cat([table[..., :4]] * 2, -1) for table in (cos, sin))
    torch.testing.assert_close(rope(rope(x, cos, sin), cos, sin, True), x)
    torch.testing.assert_close(rope(x, cos, sin), x * cos + rotate_half(x) * sin)


X, COS = torch.zeros(1, 2, 3, 8), torch.zeros(1, 1, 3, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rope(X, COS, COS[..., :4]), r"sin \[1, 1, 3, 4\]; should be"),
        (lambda: rope(X, COS[..., :3], COS[..., :3]), r"cos \[1, 1, 3, 3\].*r even"),
        (lambda: rope(X, COS[:, :, :2], COS[:, :, :2]), r"cos \[1, 1, 2, 8\]"),
        (lambda: rope(X[..., :4], COS, COS), r"x \[1, 2, 3, 4\]"),
        (lambda: rope(X, COS.half(), COS.half()), "cos is torch.float16 on cpu, x torch.float32"),
    ],
)
def test_what_does_not_go_together_is_one_line(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_tables_have_no_gradient() -> None:
    x, cos, sin = inputs(DEVICE, torch.float32, (1, 1, 2, 4), 4)
    with pytest.raises(RuntimeError, match="no gradient of cos and sin; detach them"):
        rope(x, cos.requires_grad_(), sin).sum().backward()
