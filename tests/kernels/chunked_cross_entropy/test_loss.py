from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE
from torch._subclasses.fake_tensor import FakeTensorMode

from neaptide_kernels.chunked_cross_entropy import chunked_cross_entropy
from neaptide_kernels.chunked_cross_entropy import whole as at_once
from neaptide_toolkit.testing import peak_of
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")

IGNORED = -100


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute no loss at once on a CPU, however few logits there are."""
    monkeypatch.setattr(at_once, "MOST", 0)


def inputs(
    shape: tuple[int, ...], width: int, vocabulary: int, seed: int = 0, **kind: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden, weight, bias and labels, a quarter of which are ignored."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    kind = {"dtype": torch.float64, **kind}
    hidden, weight, bias = (
        torch.randn(size, generator=generator, dtype=torch.float64).to(**kind).requires_grad_()
        for size in ((*shape, width), (vocabulary, width), (vocabulary,))
    )
    labels = torch.randint(vocabulary, shape, generator=generator)
    ignored = torch.rand(shape, generator=generator) < 0.25
    return hidden, weight, bias, labels.masked_fill(ignored, IGNORED)


def whole(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
    **options: Any,
) -> torch.Tensor:
    """Return the same loss from all logits at once."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    flat = logits.reshape(labels.numel(), len(weight))
    return torch.nn.functional.cross_entropy(flat, labels.reshape(-1), **options)


@given(
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    width=st.integers(1, 5),
    vocabulary=st.integers(1, 7),
    chunk=st.integers(1, 20),
    reduction=st.sampled_from(["mean", "sum"]),
    softcap=st.sampled_from([None, 0.5, 30.0]),
    with_bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_loss_and_gradients_are_those_of_all_logits_at_once(
    shape: tuple[int, ...],
    width: int,
    vocabulary: int,
    chunk: int,
    reduction: Any,
    softcap: float | None,
    seed: int,
    *,
    with_bias: bool,
) -> None:
    hidden, weight, bias, labels = inputs(shape, width, vocabulary, seed)
    given = [hidden, weight, bias] if with_bias else [hidden, weight]
    options: dict[str, Any] = {
        "bias": bias if with_bias else None,
        "reduction": reduction,
        "softcap": softcap,
    }
    expected = whole(hidden, weight, labels, **options)
    actual = chunked_cross_entropy(hidden, weight, labels, chunk=chunk, **options)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    for got, wanted in zip(
        torch.autograd.grad(3 * actual, given),
        torch.autograd.grad(3 * expected, given),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradients_are_numerically_right(softcap: float | None) -> None:
    hidden, weight, bias, labels = inputs((2, 3), 4, 5)
    assert torch.autograd.gradcheck(
        lambda *given: chunked_cross_entropy(
            given[0], given[1], labels, bias=given[2], chunk=2, softcap=softcap
        ),
        (hidden, weight, bias),
    )


def test_a_label_that_is_a_token_can_be_the_ignored_one() -> None:
    hidden, weight, _, labels = inputs((12,), 4, 5)
    labels = labels.clamp(min=0)
    assert (labels == 0).any()
    torch.testing.assert_close(
        whole(hidden, weight, labels, ignore_index=0),
        chunked_cross_entropy(hidden, weight, labels, chunk=5, ignore_index=0),
    )


def test_no_token_that_counts_is_a_mean_of_nothing_with_zero_gradients() -> None:
    hidden, weight, _, labels = inputs((6,), 4, 5)
    loss = chunked_cross_entropy(hidden, weight, torch.full_like(labels, IGNORED))
    loss.backward()
    assert loss.isnan()
    assert same_bits(torch.zeros_like(hidden), hidden.grad)
    assert same_bits(torch.zeros_like(weight), weight.grad)


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    hidden, weight, _, labels = inputs((9,), 4, 5, dtype=torch.float32)
    loss = chunked_cross_entropy(hidden, weight, labels, chunk=4)
    first = torch.autograd.grad(loss, [hidden, weight], retain_graph=True)
    again = torch.autograd.grad(loss, [hidden, weight])
    assert all(same_bits(*pair) for pair in zip(first, again, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, [hidden, weight])


def test_gradients_of_gradients_are_refused() -> None:
    hidden, weight, _, labels = inputs((9,), 4, 5)
    loss = chunked_cross_entropy(hidden, weight, labels)
    (gradient,) = torch.autograd.grad(loss * loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_frozen_input_gets_no_gradient_and_changes_no_other(frozen: int) -> None:
    tensors = inputs((9,), 4, 5, dtype=torch.float32)
    *given, labels = tensors
    expected = torch.autograd.grad(
        chunked_cross_entropy(given[0], given[1], labels, bias=given[2]), given
    )
    given[frozen].requires_grad_(False)
    chunked_cross_entropy(given[0], given[1], labels, bias=given[2]).backward()
    assert given[frozen].grad is None
    for index, tensor in enumerate(given):
        assert index == frozen or same_bits(expected[index], tensor.grad)


def test_without_gradients_the_loss_is_the_same_and_needs_none() -> None:
    hidden, weight, _, labels = inputs((9,), 4, 5, dtype=torch.float32)
    expected = chunked_cross_entropy(hidden, weight, labels)
    with torch.no_grad():
        actual = chunked_cross_entropy(hidden, weight, labels)
    assert not actual.requires_grad
    assert same_bits(expected.detach(), actual)


def test_views_of_any_strides_are_taken() -> None:
    hidden, weight, _, labels = inputs((3, 4), 5, 6, dtype=torch.float32)
    twisted = [hidden.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0), weight.detach().T]
    twisted = [twisted[0].requires_grad_(), twisted[1].contiguous().T.requires_grad_()]
    loss = chunked_cross_entropy(twisted[0], twisted[1], labels, chunk=5)
    loss.backward()
    whole(hidden, weight, labels).backward()
    torch.testing.assert_close(twisted[0].grad, hidden.grad)
    torch.testing.assert_close(twisted[1].grad, weight.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_gradients_are_as_near_to_the_truth_as_rounding_lets_them(
    dtype: torch.dtype,
) -> None:
    hidden, weight, bias, labels = inputs((300,), 16, 40, dtype=dtype)
    loss = chunked_cross_entropy(hidden, weight, labels, bias=bias, chunk=7, reduction="sum")
    loss.backward()
    precise = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias)]
    expected = whole(precise[0], precise[1], labels, precise[2], reduction="sum")
    expected.backward()
    assert torch.float32 == loss.dtype
    torch.testing.assert_close(loss.double(), expected, rtol=1e-2, atol=0)
    for tensor, truth in zip((hidden, weight, bias), precise, strict=True):
        assert tensor.grad is not None
        assert dtype == tensor.grad.dtype
        off = (tensor.grad.double() - truth.grad).norm() / truth.grad.norm()
        assert off < 4 * torch.finfo(dtype).eps


def test_a_large_loss_scale_reaches_float16_gradients_unrounded() -> None:
    hidden, weight, _, labels = inputs((64,), 8, 11, dtype=torch.float16)
    scale = 65536.0  # no float16
    (chunked_cross_entropy(hidden, weight, labels) * scale).backward()
    precise = hidden.detach().double().requires_grad_()
    (whole(precise, weight.detach().double(), labels) * scale).backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
    assert (hidden.grad.double() - precise.grad).norm() < 2e-3 * precise.grad.norm()


def test_under_autocast_logits_are_narrow_and_the_loss_is_not() -> None:
    hidden, weight, bias, labels = inputs((40,), 16, 30, dtype=torch.float32)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        loss = chunked_cross_entropy(hidden, weight, labels, bias=bias, chunk=40)
        expected = whole(hidden, weight, labels, bias)
        mixed = chunked_cross_entropy(hidden.detach().bfloat16(), weight, labels, bias=bias)
    assert torch.float32 == loss.dtype
    assert expected.item() == pytest.approx(loss.item(), rel=1e-6)
    assert expected.item() == pytest.approx(mixed.item(), rel=1e-6)
    given = (hidden, weight, bias)
    for got, wanted in zip(
        torch.autograd.grad(loss, given), torch.autograd.grad(expected, given), strict=True
    ):
        assert torch.float32 == got.dtype
        assert (got - wanted).norm() < 2e-2 * wanted.norm()


def test_autocast_remembers_no_weight() -> None:
    hidden, weight, _, labels = inputs((40,), 16, 30, dtype=torch.float32)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        before = chunked_cross_entropy(hidden, weight, labels).item()
        with torch.no_grad():
            weight.mul_(2)
        after = chunked_cross_entropy(hidden, weight, labels).item()
        with torch.no_grad():
            assert after == pytest.approx(whole(hidden, weight, labels).item(), rel=1e-6)
    assert before != after


@pytest.mark.usefixtures("on_cpu")  # of which the allocator is
@pytest.mark.parametrize(
    ("dtype", "softcap", "factor"),
    [
        (torch.float32, None, 1.3),
        (torch.float32, 30.0, 2.3),
        (torch.bfloat16, None, 2.3),  # float32, and the two of 16 bits in turn
    ],
)
def test_never_more_logits_than_a_chunk_has(
    dtype: torch.dtype, softcap: float | None, factor: float
) -> None:
    tokens, width, vocabulary, chunk = 2048, 8, 4096, 64
    hidden, weight, _, labels = inputs((tokens,), width, vocabulary, dtype=dtype)

    def work() -> torch.Tensor:
        loss = chunked_cross_entropy(hidden, weight, labels, chunk=chunk, softcap=softcap)
        loss.backward()
        return loss

    of_gradients = vocabulary * width * (4 + dtype.itemsize) + hidden.nbytes
    small = 10 * tokens * 8
    assert peak_of(work) < factor * chunk * vocabulary * 4 + of_gradients + small
    assert peak_of(lambda: whole(hidden, weight, labels)) > tokens * vocabulary * 4


def test_the_sums_become_the_gradients_without_a_copy() -> None:
    tokens, width, vocabulary = 8, 256, 2048
    hidden, weight, _, labels = inputs((tokens,), width, vocabulary, dtype=torch.float32)
    logits = tokens * vocabulary * 4

    def work() -> None:
        chunked_cross_entropy(hidden, weight, labels).backward()

    assert weight.nbytes <= peak_of(work) < weight.nbytes + 2 * logits + 64 * 1024


def test_frozen_and_evaluated_heads_make_no_gradient_buffer() -> None:
    hidden, weight, _, labels = inputs((8,), 256, 2048, dtype=torch.float32)

    def evaluate() -> torch.Tensor:
        with torch.no_grad():
            return chunked_cross_entropy(hidden, weight, labels)

    assert peak_of(evaluate) < weight.nbytes // 4
    weight.requires_grad_(False)
    assert peak_of(lambda: chunked_cross_entropy(hidden, weight, labels)) < weight.nbytes // 4


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_tensors_without_values_have_a_loss_without_one(kind: str) -> None:
    with FakeTensorMode() if kind == "fake" else torch.device("meta"):
        hidden = torch.ones(2, 3, 5, requires_grad=True)
        weight = torch.ones(7, 5, requires_grad=True)
        loss = chunked_cross_entropy(hidden, weight, torch.ones(2, 3, dtype=torch.int64))
        loss.backward()

    assert (torch.float32, ()) == (loss.dtype, loss.shape)
    assert hidden.grad is not None
    assert weight.grad is not None
    assert [(2, 3, 5), (7, 5)] == [hidden.grad.shape, weight.grad.shape]


with DEVICE:
    H, W, B, L = inputs((3, 4), 5, 6)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((H, W[:, :4], L), {}, r"hidden \[3, 4, 5\], weight \[6, 4\]: should be"),
        ((H, B, L), {}, r"weight \[6\]: should be"),
        ((H, W, L[:, :3]), {}, r"labels are torch.int64 \[3, 3\]; should be .* \[3, 4\]"),
        ((H, W, L.int()), {}, r"labels are torch.int32 \[3, 4\]; should be torch.int64"),
        ((H, W, L), {"bias": B[:4]}, r"bias \[4\]: should be \[6\]"),
        ((H, W.float(), L), {}, "weight is torch.float32, hidden torch.float64; convert one"),
        ((H, W, L), {"bias": B.half()}, "bias is torch.float16, hidden torch.float64"),
        ((H.transpose(0, 1), W, L.T), {"bias": B.long()}, "bias is torch.int64, hidden"),
        ((H, W.to("meta"), L), {}, f"weight is on meta, hidden on {H.device}; put them on one"),
        ((H, W, L), {"chunk": 0}, r"chunk must be at least 1 token \(got 0\)"),
        ((H, W, L), {"reduction": "none"}, r"'mean' or 'sum' \(got 'none'\)"),
        ((H, W, L), {"softcap": 0.0}, r"softcap must be more than 0 .* \(got 0.0\)"),
        ((H, W, L), {"softcap": float("inf")}, r"softcap must be .* finite, .* \(got inf\)"),
        ((H, W[:0], L), {}, r"weight \[0, 5\]: a vocabulary has at least one row"),
        ((H.long(), W.long(), L), {}, "hidden is torch.int64, weight torch.int64; both should be"),
        ((H.cfloat(), W.cfloat(), L), {}, "hidden is torch.complex64, weight torch.complex64; bo"),
        ((H, W, L + 1000), {}, "0 to 5, or ignore_index = -100: 12 of 12 are not"),
        ((H, W, L), {"ignore_index": -1}, r"of 12 are not \(the first is -100\)"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    arguments: tuple[torch.Tensor, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        chunked_cross_entropy(*arguments, **options)
    assert "\n" not in str(caught.value)
