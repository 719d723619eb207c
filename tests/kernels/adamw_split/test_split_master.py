from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neaptide_kernels.adamw_split import split_master
from neaptide_kernels.adamw_split.split_master import join, split
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")

LOWER_HALVES = [0, 1, 2, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF, 0x1234, 0xABCD]


def floats(patterns: torch.Tensor) -> torch.Tensor:
    """Return the float32 whose bits are the low 32 of each int64."""
    return patterns.to(torch.int32).view(torch.float32)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's patterns as int64, not negative."""
    width = 8 * tensor.dtype.itemsize
    integers = tensor.view({16: torch.int16, 32: torch.int32}[width])
    return integers.to(torch.int64) & (2**width - 1)


def all_patterns(upper: int, lower: list[int]) -> torch.Tensor:
    """Return the float32 of every upper half below `upper` with each of the lower halves."""
    halves = torch.arange(upper, dtype=torch.int64)[:, None] << 16
    return floats(halves | torch.tensor(lower, dtype=torch.int64))


def test_every_upper_half_comes_back_with_every_kind_of_lower_half() -> None:
    master = all_patterns(2**16, LOWER_HALVES)
    assert same_bits(master, join(*split(master)))


@pytest.mark.parametrize("upper", [0, 1, 0x7F7F, 0x7F80, 0x7F81, 0x7FFF])
def test_every_lower_half_comes_back_where_the_exponent_ends(upper: int) -> None:
    lower = torch.arange(2**16, dtype=torch.int64)
    for sign in (0, 0x8000):
        master = floats(((upper | sign) << 16) | lower)
        assert same_bits(master, join(*split(master)))


def test_every_pair_of_halves_is_a_master_of_its_own() -> None:
    hi = torch.arange(2**16).to(torch.int16).view(torch.bfloat16)[:, None].expand(-1, 4).clone()
    lo = torch.tensor([-(2**15), -1, 0, 2**15 - 1], dtype=torch.int16).expand_as(hi).clone()
    again_hi, again_lo = split(join(hi, lo))
    assert same_bits(hi, again_hi)
    assert same_bits(lo, again_lo)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_any_bits_come_back(patterns: list[int]) -> None:
    master = floats(torch.tensor(patterns, dtype=torch.int64))
    assert same_bits(master, join(*split(master)))


def test_numbers_round_to_the_nearest_bfloat16_halves_away_from_zero() -> None:
    master = all_patterns(2**16, LOWER_HALVES)
    numbers = master[~master.isnan()]
    hi, lo = split(numbers)
    rounded = (bits(numbers) + 0x8000) >> 16
    assert torch.equal(rounded, bits(hi))
    assert torch.equal(bits(numbers), (rounded << 16) + lo)
    halves = bits(numbers) & 0xFFFF == 0x8000
    assert same_bits(numbers.bfloat16()[~halves], hi[~halves])


@pytest.mark.parametrize(
    ("pattern", "hi", "lo"),
    [
        (0x00000000, 0x0000, 0),
        (0x80000000, 0x8000, 0),
        (0x00000001, 0x0000, 1),
        (0x00008000, 0x0001, -0x8000),
        (0x80000001, 0x8000, 1),
        (0x3F800000, 0x3F80, 0),
        (0x3F808000, 0x3F81, -0x8000),
        (0x7F7F7FFF, 0x7F7F, 0x7FFF),
        (0x7F7FFFFF, 0x7F80, -1),
        (0xFF7FFFFF, 0xFF80, -1),
        (0x7F800000, 0x7F80, 0),
        (0xFF800000, 0xFF80, 0),
        (0x7FC00000, 0x7FC0, 0),
        (0x7FFFFFFF, 0x7F81, -1),
        (0xFFFFFFFF, 0xFF81, -1),
    ],
)
def test_zeros_denormals_and_the_ends_of_the_range(pattern: int, hi: int, lo: int) -> None:
    upper, lower = split(floats(torch.tensor([pattern])))
    assert [hi] == bits(upper).tolist()
    assert [lo] == lower.tolist()


def test_no_quiet_nan_looks_like_a_number_to_the_model() -> None:
    quiet = all_patterns(2**16, LOWER_HALVES)
    quiet = quiet[(bits(quiet) & 0x7FC00000) == 0x7FC00000]
    assert split(quiet)[0].isnan().all()


def test_a_bfloat16_with_nothing_beside_it_is_itself() -> None:
    hi = torch.arange(2**16).to(torch.int16).view(torch.bfloat16)
    master = join(hi, torch.zeros_like(hi, dtype=torch.int16))
    assert torch.equal(bits(hi) << 16, bits(master))


@pytest.mark.parametrize("chunk", [1, 7, 24, 100])
def test_chunks_make_no_difference(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    master = torch.randn(2, 3, 4)
    hi, lo = split(master)
    monkeypatch.setattr(split_master, "CHUNK", chunk)
    monkeypatch.setattr(split_master, "LARGE_CHUNK", chunk)
    assert all(map(same_bits, (hi, lo), split(master)))
    assert same_bits(master, join(hi, lo))


class Allocated(TorchDispatchMode):
    """Notes the largest memory that an operation makes, in bytes."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {
            tensor.untyped_storage().data_ptr()
            for tensor in tree_leaves((args, kwargs))
            if isinstance(tensor, torch.Tensor)
        }
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in known:
                    self.largest = max(self.largest, storage.nbytes())
        return made


def test_no_more_than_a_chunk_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_master, "CHUNK", 16)
    monkeypatch.setattr(split_master, "LARGE_CHUNK", 16)
    master = torch.randn(1000)
    hi, lo = split(master)
    with Allocated() as allocated:
        split(master, hi, lo)
        join(hi, lo, master)
    assert 16 * 2 == allocated.largest


def test_results_go_where_they_are_asked_to_and_arguments_stay() -> None:
    master = torch.randn(5, 3).t()
    before = master.clone()
    hi = torch.empty_like(master, dtype=torch.bfloat16)
    lo = torch.empty_like(master, dtype=torch.int16)
    made = split(master, hi, lo)
    assert made[0] is hi
    assert made[1] is lo
    assert same_bits(before, master)
    kept = hi.clone(), lo.clone()
    out = torch.empty_like(master)
    assert join(hi, lo, out) is out
    assert same_bits(before, out)
    assert all(map(same_bits, kept, (hi, lo)))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (1, 1), (3, 0, 2)])
def test_shapes_of_few_elements(shape: tuple[int, ...]) -> None:
    master = torch.randn(shape)
    hi, lo = split(master)
    assert (shape, shape) == (tuple(hi.shape), tuple(lo.shape))
    assert same_bits(master, join(hi, lo))


def test_channels_last_keeps_its_order() -> None:
    master = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    hi, lo = split(master)
    assert master.stride() == hi.stride() == lo.stride()
    assert torch.equal((bits(master.contiguous()) + 0x8000) >> 16, bits(hi.contiguous()))
    assert same_bits(master, join(hi, lo))


def test_what_does_not_fit_is_refused() -> None:
    hi, lo = split(torch.randn(4, 4))
    with pytest.raises(TypeError, match="master of a split master is"):
        split(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(TypeError, match="lo of a split master is"):
        join(hi, lo.int())
    with pytest.raises(ValueError, match="must have the layout of the master"):
        join(hi, lo.t())
    with pytest.raises(ValueError, match="must have the layout of the master"):
        join(hi, lo[:2])
    with pytest.raises(ValueError, match="gaps or overlaps"):
        split(torch.randn(4, 4)[:, :2], hi[:, :2], lo[:, :2])
    with pytest.raises(ValueError, match="gaps or overlaps"):
        join(hi[:, :2], lo[:, :2], torch.randn(4, 4)[:, :2])
