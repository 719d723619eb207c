"""Attention by its definition: all scores at once, in float64, with a mask made otherwise."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE
from torch.nn.attention import SDPBackend, sdpa_kernel

from neaptide_kernels.attention import attention, ranges_of_documents
from neaptide_kernels.registry import KERNELS
from neaptide_toolkit.testing import peak_of
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")

PROVIDERS = ("reference", "blocks")


def inputs(
    batch: int, heads: int, kv_heads: int, n: int, m: int, size: int = 8, **kind: Any
) -> list[torch.Tensor]:
    """Return a query, a key and a value that require gradients; float64 by default."""
    generator = torch.Generator("cpu").manual_seed(n + 7 * m)
    shapes = ((batch, heads, n, size), (batch, kv_heads, m, size), (batch, kv_heads, m, size))
    kind = {"dtype": torch.float64, **kind}
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        .to(DEVICE, **kind)
        .requires_grad_()
        for shape in shapes
    ]


def defined(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    softcap: float | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Return attention with a bool mask, by a loop over batches and heads."""
    rows = []
    for b in range(len(query)):
        for h in range(query.shape[1]):
            of_key = h * key.shape[1] // query.shape[1]
            scores = query[b, h] @ key[b, of_key].T
            scores = scores * (scale or query.shape[3] ** -0.5)
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            seen = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask[b]
            weights = torch.where(seen, scores.exp(), 0)
            total = weights.sum(1, keepdim=True)
            rows.append(weights / torch.where(total > 0, total, 1) @ value[b, of_key])
    return torch.stack(rows).view(*query.shape[:3], value.shape[3])


def mask_of(n: int, documents: torch.Tensor, *, causal: bool, window: int | None) -> torch.Tensor:
    """Return the bool mask `[batch, n, n]`, an element at a time."""
    mask = torch.zeros(len(documents), n, n, dtype=torch.bool, device="cpu")
    for b, row in enumerate(documents.tolist()):
        for i in range(n):
            for j in range(n):
                near = window is None or abs(i - j) < window
                between = row[min(i, j) : max(i, j) + 1]
                together = row[i] >= 0 and set(between) == {row[i]}
                mask[b, i, j] = near and together and (j <= i or not causal)
    return mask.to(DEVICE)


@pytest.mark.parametrize("provider", PROVIDERS)
@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    padding=st.integers(0, 3),
    group=st.sampled_from([1, 2]),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 4]),
    softcap=st.sampled_from([None, 2.0]),
)
def test_packed_documents_of_any_length_are_as_defined(
    provider: str,
    lengths: list[int],
    padding: int,
    group: int,
    softcap: float | None,
    window: int | None,
    *,
    causal: bool,
) -> None:
    numbers = [place for place, length in enumerate(lengths) for _ in range(length)]
    documents = torch.tensor([[*numbers, *[-1] * padding]])
    n = documents.shape[1]
    given_tensors = inputs(1, 2 * group, 2, n, n)
    mask = mask_of(n, documents, causal=causal, window=window)
    expected = defined(*given_tensors, mask, softcap=softcap)
    with KERNELS.using(attention=provider, attention_backward=provider):
        actual = attention(
            *given_tensors, ranges=ranges_of_documents(documents), causal=causal, window=window,
            softcap=softcap,
        )  # fmt: skip
        gradients = torch.autograd.grad(actual.square().sum(), given_tensors)
    torch.testing.assert_close(actual, expected)
    wanted = torch.autograd.grad(expected.square().sum(), given_tensors)
    for got, right in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(got, right)


@settings(max_examples=25)
@given(
    n=st.integers(1, 12),
    m=st.integers(1, 70),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
    provider=st.sampled_from(PROVIDERS),
)
def test_any_mask_is_as_defined(n: int, m: int, share: float, seed: int, provider: str) -> None:
    given_tensors = inputs(2, 2, 1, n, m)
    generator = torch.Generator(DEVICE).manual_seed(seed)
    mask = torch.rand(2, 1, n, m, generator=generator) < share
    expected = defined(*given_tensors, mask[:, 0], scale=0.7)
    with KERNELS.using(attention=provider, attention_backward=provider):
        actual = attention(*given_tensors, bias=mask, scale=0.7)
        gradients = torch.autograd.grad(actual.square().sum(), given_tensors)
    torch.testing.assert_close(actual, expected)
    wanted = torch.autograd.grad(expected.square().sum(), given_tensors)
    for got, right in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"softcap": 1.5}, {"causal": True, "window": 2}]
)
def test_gradients_are_numerically_right(provider: str, options: dict[str, Any]) -> None:
    given_tensors = inputs(1, 2, 1, 5, 5, 3)

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        return attention(*tensors, **options)

    with KERNELS.using(attention=provider, attention_backward=provider):
        assert torch.autograd.gradcheck(call, given_tensors)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_gradients_of_dropout_are_numerically_right(provider: str) -> None:
    def call(*tensors: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(4)
        return attention(*tensors, causal=True, dropout=0.4)

    given_tensors = inputs(1, 2, 1, 5, 5, 3)
    with KERNELS.using(attention=provider, attention_backward=provider):
        assert torch.autograd.gradcheck(call, given_tensors)


def test_dropout_keeps_the_mean_and_repeats_with_the_generator() -> None:
    query, key, value = (one.detach() for one in inputs(1, 2, 2, 6, 6, dtype=torch.float32))
    torch.manual_seed(3)
    first = attention(query, key, value, dropout=0.3)
    other = attention(query, key, value, dropout=0.3)
    torch.manual_seed(3)
    assert same_bits(first, attention(query, key, value, dropout=0.3))
    assert not same_bits(first, other)
    mean = torch.stack([attention(query, key, value, dropout=0.3) for _ in range(2000)]).mean(0)
    torch.testing.assert_close(mean, attention(query, key, value), rtol=0, atol=0.08)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("provider", ["auto", *PROVIDERS])
def test_errors_are_at_most_those_of_torchs_own_path(
    dtype: torch.dtype, provider: str, *, causal: bool
) -> None:
    exact = [tensor.to(dtype) for tensor in inputs(2, 4, 4, 70, 70, 32)]

    def errors(call: Any, device: torch.device) -> list[float]:
        got = _with_gradients(call, [one.to(device) for one in exact], dtype)
        return [
            float((one.double().to(right.device) - right).norm() / right.norm())
            for one, right in zip(got, truth, strict=True)
        ]

    def torchs(path: SDPBackend, *tensors: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(path):
            return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)

    truth = _with_gradients(partial(torchs, SDPBackend.MATH), exact, torch.float64)
    named = {} if provider == "auto" else {"attention": provider, "attention_backward": provider}
    with KERNELS.using(**named):
        found = errors(lambda *given: attention(*given, causal=causal), DEVICE)
    paths = [
        errors(partial(torchs, path), torch.device("cpu"))
        for path in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)
    ]
    for own, *theirs in zip(found, *paths, strict=True):
        assert own <= 1.01 * max(theirs)  # the errors of one draw


def _with_gradients(
    call: Any, tensors: list[torch.Tensor], dtype: torch.dtype
) -> list[torch.Tensor]:
    leaves = [one.detach().to(dtype).requires_grad_() for one in tensors]
    output = call(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, torch.ones_like(output))]


@pytest.mark.parametrize("provider", ["auto", "blocks"])
def test_eight_thousand_tokens_need_a_tenth_of_the_memory(provider: str) -> None:
    n = 8192
    tensors = inputs(1, 1, 1, n, n, 64, dtype=torch.float32)

    def trained(call: Any) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(call(*tensors).sum(), tensors)

    def materialised(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        later = torch.ones(n, n, dtype=torch.bool).triu_(1)
        scores = (query @ key.mT * 0.125).masked_fill_(later, -torch.inf)
        return scores.softmax(-1) @ value

    named = {} if provider == "auto" else {"attention": provider, "attention_backward": provider}
    with KERNELS.using(**named):
        own = peak_of(lambda: trained(lambda *given: attention(*given, causal=True)))
    theirs = peak_of(lambda: trained(materialised))
    assert theirs > 2 * 4 * n * n  # more than two matrices of scores
    assert own < 0.1 * theirs


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's compiler's own
def test_compiles_into_one_graph_with_its_gradients() -> None:
    torch._dynamo.reset()
    tensors = inputs(2, 4, 2, 12, 12, dtype=torch.float32)
    ranges = ranges_of_documents(torch.arange(24).view(2, 12) // 5)

    def loss(*given_tensors: torch.Tensor) -> torch.Tensor:
        output = attention(*given_tensors, ranges=ranges, causal=True, softcap=2.0)
        return output.transpose(1, 2).reshape(2, 12, -1).square().sum()

    expected = torch.autograd.grad(loss(*tensors), tensors)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for right, got in zip(expected, torch.autograd.grad(compiled(*tensors), tensors), strict=True):
        torch.testing.assert_close(got, right)


def test_torch_finds_nothing_wrong_with_the_derivative() -> None:
    for layout in ("plain", "as models have it"):
        tensors = [one.detach() for one in inputs(2, 4, 2, 9, 9, dtype=torch.float32)]
        if layout != "plain":
            tensors = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in tensors]
        given_tensors = [one.requires_grad_() for one in tensors]
        overload = KERNELS.ops["attention"].overload
        torch.library.opcheck(overload, (*given_tensors, None, None, None, True))


def test_autocast_computes_in_its_dtype() -> None:
    tensors = inputs(1, 2, 2, 9, 9, dtype=torch.float32)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        output = attention(*tensors, causal=True)
    assert torch.bfloat16 == output.dtype
    gradients = torch.autograd.grad(output.sum(), tensors)
    assert {torch.float32} == {one.dtype for one in gradients}


def test_only_wanted_gradients_are_returned() -> None:
    query, key, value = inputs(1, 2, 2, 6, 6)
    output = attention(query.detach(), key, value.detach())
    output.sum().backward()
    assert query.grad is None
    assert key.grad is not None


def test_counts_the_operations_of_its_products() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    tensors = inputs(2, 4, 2, 6, 6)
    with FlopCounterMode(display=False) as counter:
        attention(*tensors, causal=True).sum().backward()
    one = 2 * 2 * 4 * 6 * 6 * 8
    assert (2 + 5) * one == counter.get_total_flops()


QUERY = torch.zeros(2, 4, 6, 8, device="cpu")
BAD: list[tuple[dict[str, Any], str]] = [
    ({"query": QUERY[0]}, r"query \[4, 6, 8\].*: attention takes \[batch, heads, tokens, d\]"),
    ({"key": QUERY[..., :4]}, r"key \[2, 4, 6, 4\].*should be equal"),
    ({"key": QUERY[:, :3], "value": QUERY[:, :3]}, "4 heads of the query are no multiple of .* 3"),
    ({"key": QUERY.double()}, "key is torch.float64, query torch.float32; convert one"),
    ({"bias": torch.zeros(5, device="cpu")}, r"bias is torch.float32 \[5\]; should be bool or"),
    ({"bias": torch.zeros(6, device="cpu").requires_grad_()}, "bias requires a gradient, .* use"),
    ({"ranges": torch.zeros(2, 6, 2, device="cpu")}, r"ranges is torch.float32 .* torch.int32 \[2"),
    ({"window": 0}, r"window must be at least 1 \(got 0\)"),
    ({"softcap": -1.0}, r"softcap must be more than 0 and finite, or None \(got -1.0\)"),
    ({"scale": float("nan")}, r"scale must be more than 0 and finite"),
    ({"dropout": 1.0}, r"dropout must be in \[0, 1\) \(got 1.0\)"),
    ({"key": QUERY[:, :, :5], "value": QUERY[:, :, :5], "causal": True}, "6 queries and 5 keys"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_what_does_not_go_together_is_said_in_one_line(
    change: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"query": QUERY, "key": QUERY, "value": QUERY} | change
    with pytest.raises(ValueError, match=message) as told:
        attention(arguments.pop("query"), arguments.pop("key"), arguments.pop("value"), **arguments)
    assert "\n" not in str(told.value)


def test_documents_are_runs_of_equal_numbers() -> None:
    ranges = ranges_of_documents(torch.tensor([[5, 5, 5, 2, 5, -1, -1]]))
    expected = [[0, 3], [0, 3], [0, 3], [3, 4], [4, 5]]
    assert expected == ranges[0, :5].tolist()
    assert bool((ranges[0, 5:, 0] >= ranges[0, 5:, 1]).all())
    with pytest.raises(ValueError, match=r"documents is torch.float32 \[3\]; should be integers"):
        ranges_of_documents(torch.zeros(3))
