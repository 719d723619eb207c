"""Codes are within half a step of the value, and bits are the value."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neaptide_plugins.activation_compression.codes import (
    ActivationCodes,
    decode,
    decode_bits,
    encode,
    encode_between,
    encode_mask,
    encode_signs,
    positive,
    with_signs,
)
from neaptide_plugins.activation_compression.layout import layout_of
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")

ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
LEAST = {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-24}
DTYPES = st.sampled_from(sorted(ROUNDING, key=str))
NUMBERS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 2.0**-120, 3.4028234663852886e38, 1.0, 65504.0]),
)


def coded(flat: torch.Tensor, group: int, *, never_negative: bool = False) -> ActivationCodes:
    """Return the codes as on the host; there is no NaN and no plus infinity."""
    encoded = encode(flat, group, look=True, never_negative=never_negative)
    assert encoded is not None
    return encoded


def check_bound(flat: torch.Tensor, decoded: torch.Tensor, group: int) -> None:
    """Each value is off by at most half a step of its group, rounded to the dtype."""
    assert (flat.dtype, flat.shape) == (decoded.dtype, decoded.shape)
    for part, other in zip(flat.split(group), decoded.split(group), strict=True):
        wide, found = part.double(), other.double()
        assert bool(found.isfinite().all())
        largest = float(wide.abs().max())
        step = max(largest / 254, 2.0**-120 if largest < 2.0**-120 else 0.0)
        slack = ROUNDING[flat.dtype] * largest + LEAST[flat.dtype]
        assert float((wide - found).abs().max()) <= step + slack


@settings(deadline=None, max_examples=50)
@given(
    values=st.lists(NUMBERS, min_size=1, max_size=80),
    group=st.sampled_from([16, 32, 4096]),
    dtype=DTYPES,
)
def test_every_value_is_within_half_a_step(
    values: list[float], group: int, dtype: torch.dtype
) -> None:
    flat = torch.tensor(values).clamp(*(torch.finfo(dtype).min, torch.finfo(dtype).max)).to(dtype)
    flat = flat.nan_to_num()  # what bfloat16 rounded to infinity
    check_bound(flat, decode(coded(flat, group)), group)


BROKEN = st.one_of(NUMBERS, st.sampled_from([math.inf, -math.inf, math.nan]))


@settings(deadline=None, max_examples=50)
@given(values=st.lists(BROKEN, min_size=1, max_size=60), dtype=DTYPES, look=st.booleans())
def test_only_a_masked_value_leaves_its_group_alone(
    values: list[float],
    dtype: torch.dtype,
    look: bool,  # noqa: FBT001
) -> None:
    flat = torch.tensor(values).to(dtype)
    broken = flat.isnan() | (flat == math.inf)
    encoded = encode(flat, 16, look=look)
    assert (look and bool(broken.any())) == (encoded is None)
    if encoded is None:
        return
    decoded = decode(encoded)
    for part, other, bad in zip(*(each.split(16) for each in (flat, decoded, broken)), strict=True):
        if bad.any():
            assert not other.where(part != -math.inf, math.nan).isfinite().any()
        else:
            assert torch.equal(part == -math.inf, other == -math.inf)
            hidden = part == -math.inf
            check_bound(part.masked_fill(hidden, 0), other.masked_fill(hidden, 0), 16)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-45, 1e-30, 3.4028234663852886e38])
def test_a_constant_tensor_is_itself_to_rounding(value: float) -> None:
    flat = torch.full((100,), value)
    check_bound(flat, decode(coded(flat, 64)), 64)
    if abs(value) > 2.0**-120:
        assert torch.allclose(flat, decode(coded(flat, 64)), rtol=2.0**-22, atol=0.0)


@settings(deadline=None, max_examples=50)
@given(values=st.lists(NUMBERS, min_size=1, max_size=80), dtype=DTYPES)
@example(values=[0.0078125, 1.1920928955078125e-07], dtype=torch.float16)
def test_signs_are_exact(values: list[float], dtype: torch.dtype) -> None:
    flat = torch.tensor(values).to(dtype)
    bits = encode_signs(flat)
    low, high = sorted((float(flat[0].nan_to_num()), float(flat[-1].nan_to_num())))
    inside = decode_bits(encode_between(flat, low, high))
    assert torch.equal((flat > low) & (flat < high), (inside > low) & (inside < high))
    finite = flat.nan_to_num(posinf=0.0, neginf=0.0)
    kept = with_signs(decode(coded(finite, 16)), encode_signs(finite))
    assert torch.equal(finite > 0, kept > 0)
    check_bound(finite, kept, 16)
    rectified = finite.relu()
    encoded = coded(rectified, 16, never_negative=True)
    assert torch.equal(rectified > 0, positive(encoded) > 0)
    check_bound(rectified, decode(encoded), 16)
    assert torch.equal(flat > 0, decode_bits(bits) > 0)


def test_nan_passes_a_rectifier_as_it_does_in_torch() -> None:
    flat = torch.tensor([math.nan, 1.0, 0.0, math.inf])
    encoded = encode(flat, 16, look=False, never_negative=True)
    assert encoded is not None
    assert [1, 1, 0, 1] == positive(encoded).tolist()
    assert [1, 1, 0, 1] == decode_bits(encode_signs(flat)).tolist()


@settings(deadline=None, max_examples=50)
@given(
    chosen=st.lists(st.booleans(), min_size=1, max_size=70),
    value=st.sampled_from([1.0, 1 / 0.9, 0.5, 2.0]),
    dtype=st.sampled_from([torch.bool, torch.float32, torch.bfloat16]),
)
def test_masks_are_held_without_loss(chosen: list[bool], value: float, dtype: torch.dtype) -> None:
    mask = torch.tensor(chosen).to(dtype)
    flat = mask if dtype is torch.bool else mask * value
    encoded = encode_mask(flat)
    assert encoded is not None
    assert same_bits(flat, decode_bits(encoded))
    assert -(-len(chosen) // 8) == encoded.bits.nbytes


@pytest.mark.parametrize(
    "values",
    [[0.0, 1.0, 2.0], [1.0, -1.0], [0.0, math.nan], [-0.0, 1.0], [0.0, -0.0], [0.0, -math.inf]],
)
def test_what_has_other_values_is_no_mask(values: list[float]) -> None:
    assert encode_mask(torch.tensor(values)) is None


@settings(deadline=None, max_examples=50)
@given(
    size=st.lists(st.integers(1, 5), min_size=0, max_size=4),
    order=st.randoms(use_true_random=False),
    cut=st.booleans(),
)
def test_any_layout_comes_back(size: list[int], order: object, cut: bool) -> None:  # noqa: FBT001
    base = torch.randn(*size) if size else torch.randn(())
    dims = list(range(len(size)))
    order.shuffle(dims)  # type: ignore[attr-defined]
    tensor = base.permute(dims)
    if cut and size and tensor.shape[0] > 1:
        tensor = tensor[1:]
    layout = layout_of(tensor)
    assert layout is not None
    again = layout.unflatten(layout.flat(tensor).clone())
    assert torch.equal(tensor, again)
    if layout.gapless:
        assert tensor.stride() == again.stride()
    assert torch.empty_like(tensor).stride() == again.stride() or 1 in tensor.shape


def test_what_shares_memory_with_itself_has_no_layout() -> None:
    assert layout_of(torch.randn(4, 1).expand(4, 8)) is None
    assert layout_of(torch.randn(8).as_strided((4, 4), (1, 1))) is None
