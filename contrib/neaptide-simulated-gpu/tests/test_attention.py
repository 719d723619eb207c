"""Fused attention: where a GPU has it, with the CPU's bits and without memory for the scores."""

from __future__ import annotations

from typing import Any

import pytest
import simulated_gpu
import torch
from torch.nn.functional import scaled_dot_product_attention

ROWS, LENGTH, WIDTH = 2, 10, 16
FUSED = "ScaledDotProductFusedAttentionOverrideable"
SINGLE, HALF = torch.float32, torch.bfloat16


def attended(
    device: str,
    dtype: torch.dtype = SINGLE,
    *,
    mask: str = "",
    heads: int = 4,
    width: int = WIDTH,
    **options: Any,
) -> tuple[Any, list[torch.Tensor]]:
    """Return the backward's node, and the output with all gradients on the CPU."""
    torch.manual_seed(1)
    sizes = (4, WIDTH), (heads, WIDTH), (heads, width)
    given = [torch.randn(ROWS, count, LENGTH, size, dtype=dtype) for count, size in sizes]
    leaves = [one.to(device).requires_grad_() for one in given]
    added = None
    if mask:
        added = torch.randn(ROWS, 1, LENGTH, LENGTH, dtype=dtype).to(device)
        if mask == "with a gradient":
            leaves.append(added.requires_grad_())
    torch.manual_seed(2)
    out = scaled_dot_product_attention(*leaves[:3], added, **options)
    weights = torch.linspace(-1, 1, out.numel(), dtype=dtype).reshape(out.shape).to(device)
    (out * weights).sum().backward()
    return out.grad_fn, [
        out.detach().cpu(),
        *(one.grad.cpu() for one in leaves if one.grad is not None),
    ]


CASES: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "plain": (SINGLE, {}),
    "causal, in half": (HALF, {"is_causal": True}),
    "a mask": (SINGLE, {"mask": "fixed"}),
    "a gradient of the mask": (SINGLE, {"mask": "with a gradient"}),
    "a gradient of the mask, in half": (HALF, {"mask": "with a gradient"}),
    "groups of queries, in half": (HALF, {"heads": 2, "enable_gqa": True}),
    "narrow values": (SINGLE, {"width": 8}),
    "narrow values, causal": (SINGLE, {"width": 8, "is_causal": True}),
    "narrow values, a scale": (SINGLE, {"width": 8, "scale": 0.3}),
}


@pytest.mark.parametrize("case", CASES)
def test_fused_attention_has_the_bits_of_the_cpu(case: str) -> None:
    dtype, options = CASES[case]
    node, found = attended("cuda", dtype, **options)
    assert node.name().startswith(FUSED)
    _, expected = attended("cpu", dtype, **options)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float64, {}),
        (SINGLE, {"heads": 2, "enable_gqa": True}),
        (HALF, {"heads": 2, "enable_gqa": True, "mask": "fixed"}),
    ],
)
def test_what_no_kernel_of_a_gpu_fuses_is_composed(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    node, _ = attended("cuda", dtype, **options)
    assert not node.name().startswith(FUSED)


def test_dropout_is_fused_and_repeats_with_its_seed() -> None:
    node, first = attended("cuda", dropout_p=0.4)
    assert node.name().startswith(FUSED)
    _, again = attended("cuda", dropout_p=0.4)
    assert all(map(torch.equal, first, again))
    _, without = attended("cuda")
    assert not torch.equal(first[0], without[0])


@pytest.mark.parametrize("mask", [None, "fixed"])
def test_gradients_with_dropout_are_those_of_the_output(mask: str | None) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 6, 8, device="cuda").requires_grad_() for _ in range(3))
    added = torch.randn(1, 1, 6, 6, device="cuda") if mask else None

    def loss(*given: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return scaled_dot_product_attention(*given, added, dropout_p=0.5).square().sum()

    loss(query, key, value).backward()
    for place, one in enumerate((query, key, value)):
        along, small = torch.randn_like(one), 1e-2
        more, less = [query, key, value], [query, key, value]
        more[place], less[place] = one + small * along, one - small * along
        slope = (loss(*more) - loss(*less)).item() / (2 * small)
        assert (one.grad * along).sum().item() == pytest.approx(slope, rel=1e-2, abs=1e-2)


def peak(*, fake: bool, **options: Any) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    if fake:
        with simulated_gpu.fake_data():
            run(**options)
    else:
        run(**options)
    return torch.cuda.max_memory_allocated() - before


def run(**options: Any) -> None:
    given = [torch.zeros(1, 2, 512, 8, device="cuda", requires_grad=True) for _ in range(3)]
    scaled_dot_product_attention(*given, **options).sum().backward()


@pytest.mark.parametrize("fake", [False, True])
def test_dropout_takes_no_memory_for_the_scores(fake: bool) -> None:  # noqa: FBT001
    scores = 2 * 512 * 512 * 4
    assert peak(fake=fake, dropout_p=0.2) < scores / 2
    assert peak(fake=fake, dropout_p=0.2) == peak(fake=not fake, dropout_p=0.2)
