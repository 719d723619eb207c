"""Lion on a CPU by Numba, beside the reference and beside the optimizer without it, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from neaptide_kernels.adamw_split.forms import lerps_fused
from neaptide_kernels.lion import lion_step, runs_by_kernel
from neaptide_kernels.registry import KERNELS
from neaptide_plugins.lion.optimizer import Lion

pytest.importorskip("numba")

TAKEN = [dtype for dtype in (torch.float32, torch.bfloat16) if lerps_fused(dtype)]
ODD = [torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-40, -1e-45, 3.4e38, -3.4e38, 2.0**-126, 1.0]
of_each_dtype = pytest.mark.parametrize("dtype", TAKEN, ids=str)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def numbers(size: int, seed: int, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """Return numbers of many magnitudes that start `offset` elements into their memory."""
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(size, generator=draw) * 10 ** torch.randn(size, generator=draw)
    return torch.empty(offset + size, dtype=dtype)[offset:].copy_(values)


def stepped(provider: str, lists: list[list[torch.Tensor]], *options: Any) -> list[torch.Tensor]:
    """Return weights, momentums and gradients after a step."""
    with KERNELS.using(lion_step=provider):
        lion_step(*lists, *options)
    return [tensor for tensors in lists for tensor in tensors]


@of_each_dtype
@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(
        st.integers(0, 70) | st.sampled_from([1023, 1024, 1025, 2048, 5000]), min_size=1, max_size=4
    ),
    offset=st.integers(0, 9),
    seed=st.integers(0, 2**63 - 1),
    lr=st.floats(0, 1),
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    decay=st.sampled_from([0.0, 1e-3, 0.5]),
)
def test_a_step_has_the_bits_of_the_reference(
    dtype: torch.dtype,
    sizes: list[int],
    offset: int,
    seed: int,
    lr: float,
    betas: tuple[float, float],
    decay: float,
) -> None:
    seeds = [(seed + place) % (1 << 63) for place in range(len(sizes))]
    expected, got = (
        stepped(
            provider,
            [[numbers(size, part, dtype, offset) for size in sizes] for part in range(3)],
            seeds,
            lr,
            *betas,
            decay,
        )
        for provider in ("reference", "numba")
    )
    assert all(
        torch.equal(bits(right), bits(found)) for right, found in zip(expected, got, strict=True)
    )


@of_each_dtype
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for provider, threads in (("reference", 1), ("numba", 1), ("numba", 2), ("numba", 3)):
            lists = [[numbers(size, part, dtype) for size in (7, 600_003)] for part in range(3)]
            torch.set_num_threads(threads)
            found.append(stepped(provider, lists, [3, 4], 1e-2, 0.9, 0.99, 0.1))
            torch.set_num_threads(before)  # torch's powers in `numbers` depend on it
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@of_each_dtype
def test_inf_nan_and_denormals_are_as_in_the_reference(dtype: torch.dtype) -> None:
    odd = torch.tensor(ODD).to(dtype)
    expected, got = (
        stepped(
            provider,
            [[one.flatten()] for one in torch.meshgrid(odd, odd, odd, indexing="ij")],
            [5],
            0.25,
            0.9,
            0.99,
            0.1,
        )
        for provider in ("reference", "numba")
    )
    for right, found in zip(expected, got, strict=True):
        assert torch.equal(right.isnan(), found.isnan())
        assert bool(((bits(right) == bits(found)) | right.isnan()).all())


@of_each_dtype
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("turned", [False, True])
def test_the_optimizer_has_the_bits_that_it_has_without(
    dtype: torch.dtype, rounding: str, *, turned: bool
) -> None:
    found = []
    asked: list[dict[str, Any]] = [{"lion_step": "reference"}, {}]
    for provider in asked:
        params = [
            nn.Parameter(numbers(size, size, dtype).view(-1, 5)) for size in (35, 2000, 10_005)
        ]
        optimizer = Lion(params, lr=1e-2, weight_decay=0.1, rounding=rounding, seed=3)
        for step in range(3):
            for param in params:
                grad = numbers(param.numel(), step, dtype)
                rows, columns = param.shape
                param.grad = grad.view(columns, rows).t() if turned else grad.view(rows, columns)
            with KERNELS.using(**provider):
                optimizer.step()
        found.append([*params, *(optimizer.state[param]["exp_avg"] for param in params)])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(
    ("dtype", "seeds", "runs"),
    [
        (torch.float32, [], True),
        (torch.float32, [1], True),
        (torch.bfloat16, [1], True),
        (torch.bfloat16, [], False),
        (torch.float16, [1], False),
        (torch.float64, [], False),
    ],
    ids=str,
)
def test_it_runs_what_it_takes(dtype: torch.dtype, seeds: list[int], *, runs: bool) -> None:
    if runs and dtype not in TAKEN:
        pytest.skip("torch rounds means on this CPU in a way that is not known")
    lists = [[numbers(3, part, dtype)] for part in range(3)]
    assert runs == runs_by_kernel((*lists, seeds, 1e-2))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"grads": []}, "got 1 params and 0 grads"),
        (
            {"grads": [torch.ones(4)]},
            r"grads\[0\] is torch.float32 \[4\], its weight torch.float32",
        ),
        ({"exp_avg": [torch.ones(3).bfloat16()]}, r"exp_avg\[0\] is torch.bfloat16 \[3\]"),
        ({"seeds": [1, 2]}, "got 1 params and 2 seeds"),
        ({"beta1": 1.0}, r"beta1 and beta2 must be in \[0, 1\) \(got 1.0, 0.99\)"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, Any], says: str) -> None:
    lists = {name: [torch.ones(3)] for name in ("params", "grads", "exp_avg")}
    with pytest.raises(ValueError, match=says):
        lion_step(**{**lists, "seeds": [], "lr": 1e-2, **change})
