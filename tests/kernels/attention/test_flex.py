"""FlexAttention, not compiled: a CPU has no compiled one that returns logarithms of sums."""

from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention

from neaptide_kernels.attention import flex, trials
from neaptide_kernels.attention.call import AttentionCall
from neaptide_kernels.registry import KERNELS, Provider, disagreements

CPU = torch.device("cpu")
PROVIDER = next(one for one in KERNELS.providers("attention") if one.name == "flex")
KINDS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": 40},
    "softcap and window": {"causal": True, "window": 130, "softcap": 2.0},
}


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return trials.inputs((2, 4, 260, 16), 2, 260, CPU)


def calls() -> dict[str, AttentionCall]:
    bias = torch.linspace(-2, 2, 260 * 260, device="cpu").view(260, 260)
    of_keys = {"ALiBi": bias[0] * torch.tensor([1.0, 2.0, 3.0, 4.0], device="cpu")[:, None, None]}
    biases = {"bias": bias, "bool bias": bias < 1, **of_keys}
    return {
        **{name: AttentionCall(*inputs(), **options) for name, options in KINDS.items()},
        **{name: AttentionCall(*inputs(), one, causal=True) for name, one in biases.items()},
        "documents": AttentionCall(
            *inputs(), ranges=trials.documents(2, 260, CPU), causal=True, window=100
        ),
        "more keys": AttentionCall(*trials.inputs((1, 2, 130, 8), 1, 300, CPU)),
    }


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", calls())
def test_it_agrees_with_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "compiled", lambda: flex_attention)
    spec = KERNELS.ops["attention"].spec
    call = calls()[name]
    with torch.no_grad():
        assert [] == list(disagreements(spec, PROVIDER, spec.complete(tuple(call)), {}))


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 400),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 300),
    ranged=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_blocks_are_some_where_a_pair_is_seen_and_whole_where_all_are(
    *, n: int, causal: bool, window: int | None, ranged: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(1, 1, n, 8, device="cpu")
    ranges = torch.randint(0, n + 1, (1, n, 2), generator=generator, device="cpu").int()
    call = AttentionCall(
        tokens, tokens, tokens, causal=causal, window=window, ranges=ranges if ranged else None
    )
    first, after = flex.bounds(call)
    columns = torch.arange(n, device="cpu")
    pairs = (columns >= first[0, :, None]) & (columns < after[0, :, None])
    some, whole = flex.blocks(first, after, n)
    for row, column in torch.cartesian_prod(*map(torch.arange, some.shape[2:])).view(-1, 2):
        block = pairs.split(flex.BLOCK)[row].split(flex.BLOCK, 1)[column]
        assert (bool(block.any()), bool(block.all())) == (
            bool(some[0, 0, row, column]), bool(whole[0, 0, row, column])
        )  # fmt: skip


@pytest.fixture
def built_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "has_attention_backends", lambda: True)


@pytest.mark.usefixtures("built_for_cuda")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"device": "cpu", "capability": None}, "no logarithms of sums on a CPU"),
        ({"capability": (7, 5)}, "below 8.0"),
    ],
)
def test_what_it_does_not_support_has_a_reason(change: dict[str, object], reason: str) -> None:
    query = KERNELS.query("attention", tuple(AttentionCall(*inputs())))
    asked = attrs.evolve(query, **{"device": "cuda", "capability": (8, 0), **change})
    answer = PROVIDER.supports(asked)
    assert (answer is True) if not reason else reason in str(answer)


@pytest.mark.usefixtures("built_for_cuda")
def test_short_calls_dropout_and_float64_are_left_to_others() -> None:
    seed = torch.tensor(3)
    short = AttentionCall(*trials.inputs((1, 2, 100, 8), 1, 300, CPU))
    double = AttentionCall(*(one.double() for one in inputs()))
    for call in (short, double, AttentionCall(*inputs(), seed=seed, dropout=0.5)):
        query = KERNELS.query("attention", tuple(call))
        asked = attrs.evolve(query, device="cuda", capability=(9, 0))
        assert isinstance(PROVIDER.supports(asked), str)


def test_it_is_a_provider_of_the_forward_only() -> None:
    backward: list[Provider] = list(KERNELS.providers("attention_backward"))
    assert "flex" not in {one.name for one in backward}
