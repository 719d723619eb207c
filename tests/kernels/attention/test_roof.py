"""The roof of attention counts no product that a provider may skip."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neaptide_kernels.attention.call import AttentionCall
from neaptide_kernels.attention.trials import gradient_call
from neaptide_kernels.registry import KERNELS
from neaptide_kernels.registry.roof import work_of

N, D = 9, 8


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 20])
def test_only_pairs_that_are_seen_count(window: int | None, *, causal: bool) -> None:
    tensors = [torch.zeros(2, 4, N, D, device="cpu") for _ in range(3)]
    call = AttentionCall(*tensors, causal=causal, window=window)
    pairs = sum(
        (j <= i or not causal) and (window is None or abs(i - j) < window)
        for i in range(N)
        for j in range(N)
    )
    for name, arguments, products in (
        ("attention", call, 2),
        ("attention_backward", gradient_call(call), 5),
    ):
        work = work_of(KERNELS.ops[name].spec, KERNELS.query(name, arguments), arguments)
        assert products * 2 * 2 * 4 * pairs * D == work.products


@pytest.mark.parametrize(
    "hidden",
    [
        {"ranges": torch.zeros(1, N, 2, dtype=torch.int32, device="cpu")},
        {"bias": torch.zeros(N, N, dtype=torch.bool, device="cpu")},
    ],
)
def test_ranges_and_a_bias_may_hide_every_pair(hidden: dict[str, Any]) -> None:
    tensors = [torch.zeros(1, 2, N, D, device="cpu") for _ in range(3)]
    call = AttentionCall(*tensors, **hidden)
    for name, arguments in (("attention", call), ("attention_backward", gradient_call(call))):
        work = work_of(KERNELS.ops[name].spec, KERNELS.query(name, arguments), arguments)
        assert not work.products
        assert work.moved
