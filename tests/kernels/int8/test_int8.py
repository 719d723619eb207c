"""The int8 ops by their laws: how far codes are off, whatever the sizes, and what has no codes."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE

from neaptide_kernels.int8 import dequantize_int8, quantize_int8

pytestmark = pytest.mark.usefixtures("on_device")

SIZES = st.sampled_from([0, 1, 17, 63, 257])
GROUPS = st.sampled_from([1, 3, 64, 1000, 1 << 40])


def normal(elements: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator(DEVICE).manual_seed(seed))


def spread(of_groups: torch.Tensor, group: int, elements: int) -> torch.Tensor:
    return of_groups.repeat_interleave(min(group, max(1, elements)))[:elements]


@given(SIZES, GROUPS, st.sampled_from([0, 1]), st.integers(0, 99))
def test_a_value_is_off_by_half_a_code(elements: int, group: int, affine: int, seed: int) -> None:
    x = normal(elements, seed)
    codes, scale, zero = quantize_int8(x, group, bool(affine))
    values = dequantize_int8(codes, scale, zero if affine else None, group)

    assert (x.shape, (math.ceil(elements / group),)) == (codes.shape, scale.shape)
    # An affine range is one code short at an end where its zero is rounded.
    allowed = (1.0 if affine else 0.5) * spread(scale, group, elements)
    assert bool(((values - x).abs() <= allowed * 1.001).all())


@given(SIZES, GROUPS, st.integers(0, 99))
def test_stochastic_codes_are_one_of_the_two_around(elements: int, group: int, seed: int) -> None:
    x = normal(elements, seed)
    codes, scale, _ = quantize_int8(x, group, False, True, seed)

    exact = x.double() / spread(scale, group, elements).double()
    assert bool(((codes - exact).abs() <= 1 + 1e-4).all())


def test_the_mean_of_stochastic_codes_is_the_value() -> None:
    x = torch.tensor([1.0, 0.3003, -0.7001])
    values = [
        dequantize_int8(*quantize_int8(x, 3, False, True, seed)[:2], None, 3)
        for seed in range(2000)
    ]

    torch.testing.assert_close(torch.stack(values).mean(0), x, rtol=0, atol=3e-4)


def test_a_whole_number_of_scales_keeps_its_code_under_every_draw() -> None:
    # Of so many draws some are so close to 1 that the float32 sum with 66 is 67.
    x = torch.full((1 << 21,), 66.0)
    x[::64] = 127.0

    codes, _, _ = quantize_int8(x, 64, False, True, 0)

    assert torch.equal(codes.float(), x)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(8, 8).t(),
        lambda x: x.view(8, 8)[:, 1::3],
        lambda x: x.flip(0),
        lambda x: x[:1].expand(5),
        lambda x: x[5],
    ],
    ids=["transposed", "sliced", "flipped", "expanded", "0-dim"],
)
def test_views_are_quantized_as_their_copies(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = view(normal(64))
    codes, scale, _ = quantize_int8(x, 4)
    expected, expected_scale, _ = quantize_int8(x.clone(memory_format=torch.contiguous_format), 4)

    assert torch.equal(expected, codes)
    assert torch.equal(expected_scale, scale)
    assert torch.equal(
        dequantize_int8(expected, scale, None, 4), dequantize_int8(codes, scale, None, 4)
    )


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("affine", [0, 1])
def test_a_broken_number_breaks_its_group_alone(number: float, affine: int) -> None:
    x = normal(12)
    x[5] = number
    codes, scale, zero = quantize_int8(x, 4, bool(affine))
    values = dequantize_int8(codes, scale, zero if affine else None, 4)

    assert [False] * 4 + [True] * 4 + [False] * 4 == values.isnan().tolist()


def test_the_smallest_and_largest_numbers_of_float32() -> None:
    x = torch.tensor([1e-40, -1e-45, 3.4e38, -3.4e38])
    codes, scale, _ = quantize_int8(x, 2)

    assert [0, 0, 127, -127] == codes.tolist()
    assert bool(scale.isfinite().all())


@pytest.mark.usefixtures("on_cpu")  # the simulated GPU has no sparse tensors
def test_what_has_no_codes_is_said_in_one_line() -> None:
    for x, message in (
        (torch.ones(3, dtype=torch.int32), "takes a floating tensor .got torch.int32"),
        (torch.ones(3, dtype=torch.cfloat), "takes a floating tensor .got torch.complex64"),
        (torch.eye(3).to_sparse(), "takes dense tensors .x is torch.sparse_coo.; use its to_dense"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            quantize_int8(x, 4)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"a group has at least 1 element .got 0"):
        quantize_int8(torch.ones(3), 0)
    with pytest.raises(ValueError, match=r"3 codes in groups of 2 have torch.float32 \[2\]"):
        dequantize_int8(torch.ones(3, dtype=torch.int8), torch.ones(3), None, 2)
