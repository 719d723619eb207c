"""Makes sample arguments for the ops of attention."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import Sample, relative_error

from . import reference
from .call import AttentionCall, AttentionGradient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest permitted relative error of the output, by dtype."""
ALLOWED_GRADIENT = {**ALLOWED, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest permitted relative error of a gradient: a backward rounds the probabilities, too."""
ALLOWED_SUMS = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest permitted relative error of the logarithms of sums, by the output's dtype."""
_ROUNDED = 1e-4
"""The same for 16-bit outputs: some backends round the scores' factors."""
_HALF = (torch.float16, torch.bfloat16)


def agree(
    expected: Sequence[tuple[str, torch.Tensor]], got: Sequence[tuple[str, torch.Tensor]]
) -> Iterator[str]:
    """Yield a message for each result of `attention` whose relative error is too large."""
    dtype = got[0][1].dtype
    limits = (ALLOWED[dtype], ALLOWED_SUMS.get(dtype, _ROUNDED))
    for (name, right), (_, result), allowed in zip(expected, got, limits, strict=True):
        error = relative_error(right, result)
        if error > allowed:
            yield f"{name}: relative error {error:.2g} is more than {allowed:.2g}"


def inputs(
    shape: Sequence[int],
    kv_heads: int,
    keys: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a random query of `shape`, `[batch, heads, n, d]`, with a key and a value."""
    batch, heads, n, d = shape
    generator = torch.Generator().manual_seed(heads * n + keys)
    query, key, value = (
        torch.randn(batch, tokens, count, d, generator=generator, device="cpu")
        .transpose(1, 2)
        .to(dtype=dtype, device=device)
        for count, tokens in ((heads, n), (kv_heads, keys), (kv_heads, keys))
    )
    return query, key, value


def documents(batch: int, n: int, device: torch.device) -> torch.Tensor:
    """Return ranges of packed documents of different lengths; some tokens see no key."""
    generator = torch.Generator().manual_seed(n)
    borders = torch.rand(batch, n, generator=generator, device="cpu") < 4 / max(n, 4)
    places = torch.arange(n, device="cpu").expand(batch, n)
    first = torch.where(borders, places, 0).cummax(1).values
    after = torch.where(borders, places, n).flip(1).cummin(1).values.flip(1)
    after = torch.cat([after[:, 1:], torch.full((batch, 1), n, device="cpu")], 1)[:, :n]
    after[:, : n // 5] = first[:, : n // 5]  # these see no key
    return torch.stack([first, after], -1).int().to(device)


def calls(device: torch.device) -> Iterator[tuple[str, AttentionCall]]:
    """Yield the names and arguments of small calls of every kind."""
    seed = torch.tensor(11, device=device)
    for dtype in (torch.float32, *_HALF):
        for causal in (False, True):
            given = inputs((2, 3, 17, 16), 3, 17, device, dtype)
            yield f"17 tokens {dtype}, causal {causal}", AttentionCall(*given, causal=causal)
        given = inputs((1, 4, 65, 24), 2, 65, device, dtype)
        yield f"grouped {dtype}", AttentionCall(*given, causal=True, scale=0.3)
        ranges = documents(1, 65, device)
        name = f"documents {dtype}"
        yield name, AttentionCall(*given, ranges=ranges, causal=True, softcap=2.0)
    for dtype in _HALF:
        given = inputs((1, 2, 150, 64), 1, 150, device, dtype)
        yield f"150 tokens {dtype}", AttentionCall(*given, causal=True)
    given = inputs((1, 2, 150, 16), 1, 150, device)
    near = AttentionCall(*given, causal=True, window=40, softcap=2.0)
    yield "150 tokens, window and softcap", near
    tilted = torch.linspace(-2, 2, 150, device=device)
    yield "150 tokens, a bias of keys", AttentionCall(*given, tilted)
    given = inputs((1, 2, 70, 8), 1, 70, device)
    for causal, window in product((False, True), (2, 9)):
        yield (
            f"window {window}, causal {causal}",
            AttentionCall(*given, causal=causal, window=window),
        )
    everything: dict[str, Any] = {"causal": True, "window": 40, "softcap": 3.0, "seed": seed}
    yield (
        "everything",
        AttentionCall(*given, ranges=documents(1, 70, device), dropout=0.2, **everything),
    )
    yield "dropout", AttentionCall(*given, seed=seed, dropout=0.5)
    for n, m in ((1, 3), (5, 33), (33, 5), (0, 4), (4, 0)):
        yield f"{n} queries, {m} keys", AttentionCall(*inputs((1, 2, n, 8), 2, m, device))
    query, key, value = inputs((2, 2, 20, 8), 2, 20, device)
    bias = torch.linspace(-2, 2, 400, device=device).view(20, 20)
    yield "bias", AttentionCall(query, key, value, bias)
    yield "bool bias", AttentionCall(query, key, value, (bias < 1).view(1, 1, 20, 20))
    yield "a bias of keys", AttentionCall(query, key, value, bias[:1])
    yield "strided", AttentionCall(query[..., ::2], key[..., ::2], value[..., ::2], causal=True)
    yield "wide values", AttentionCall(query, key, torch.cat([value, -value], 3), causal=True)
    yield "no heads", AttentionCall(query[:, :0], key[:, :0], value[:, :0])
    yield "large scores", AttentionCall(query * 4, key * 4, value, causal=True)


def gradient_call(call: AttentionCall) -> AttentionGradient:
    """Return the arguments of a backward of this call, with a random gradient."""
    output, logsumexp = reference.attention(*call)
    generator = torch.Generator().manual_seed(output.numel())
    gradient = torch.randn(output.shape, generator=generator, device="cpu")
    return AttentionGradient(gradient.to(output), output, logsumexp, *call)


def samples(device: torch.device) -> Iterator[Sample]:
    """Yield small calls of `attention`."""
    for name, call in calls(device):
        yield Sample(name=name, arguments=tuple(call))


def gradient_samples(device: torch.device) -> Iterator[Sample]:
    """Yield small calls of `attention_backward`."""
    for name, call in calls(device):
        yield Sample(name=name, arguments=tuple(gradient_call(call)))


def _large(device: torch.device) -> Iterator[tuple[str, AttentionCall]]:
    gpu = device.type != "cpu"  # a CPU would take minutes for the same sizes
    dtype = torch.bfloat16 if gpu else torch.float32
    for heads, kv_heads, d in ((32, 8, 128), (16, 16, 64)):
        n, share = (8192, 1) if gpu else (1024, 8)
        shape = (1, heads // share, n, d)
        given = inputs(shape, kv_heads // share, n, device, dtype)
        kind = f"{shape[1]} heads of {d}, {kv_heads // share} of the key, {n} tokens"
        yield f"causal, {kind}", AttentionCall(*given, causal=True)
    ranges = documents(1, n, device)
    yield f"documents, {kind}", AttentionCall(*given, ranges=ranges, causal=True)


def large(device: torch.device) -> Iterator[Sample]:
    """Yield calls of `attention` as language models make them; on a CPU they are smaller."""
    for name, call in _large(device):
        yield Sample(name=name, arguments=tuple(call))


def large_gradient(device: torch.device) -> Iterator[Sample]:
    """Yield calls of `attention_backward` as language models make them."""
    for name, call in _large(device):
        output = torch.randn_like(call.query)
        sums = torch.full(call.query.shape[:3], 9.0, device=device)  # only the time counts
        given = AttentionGradient(torch.randn_like(output), output, sums, *call)
        yield Sample(name=name, arguments=tuple(given))
