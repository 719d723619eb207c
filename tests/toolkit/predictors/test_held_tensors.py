"""What is held compactly: error bounds, no bias, exact bytes, the same bits again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE

from neaptide_kernels.apply_delta import apply_delta
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.predictors import held_tensors
from neaptide_toolkit.predictors.held_tensors import (
    PLAIN,
    HeldTensor,
    Storage,
    WindowOps,
    held_bytes,
    pieces,
    seed_of,
)
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")

CPU = torch.device("cpu")
OPS = WindowOps(quantize_int8, dequantize_int8, apply_delta)
PLACES = {"host": Storage(OPS, CPU), "pinned": Storage(OPS, CPU, CPU)}
STATES = ("float32", "bfloat16", "int8")
DIGIT = {"float32": 0.0, "bfloat16": 2.0**-7, "int8": 1 / 127}
"""Distance of neighbouring numbers, as a share of the number or of its block's largest."""
SHAPES = st.sampled_from([(), (0,), (1,), (17,), (256,), (3, 100), (257,)])


def filled(shape: tuple[int, ...], state: str, seed: int, place: str = "host") -> HeldTensor:
    kept = PLACES[place].zeros(shape, state)  # type: ignore[arg-type]
    kept.write(0, values(shape, seed).view(-1), seed)
    return kept


def values(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator(DEVICE).manual_seed(seed))


@given(SHAPES, st.sampled_from(STATES), st.sampled_from(sorted(PLACES)), st.integers(0, 99))
def test_what_is_read_is_what_was_written_within_a_digit(
    shape: tuple[int, ...], state: str, place: str, seed: int
) -> None:
    expected, kept = values(shape, seed), filled(shape, state, seed, place)
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    assert expected.shape == kept.whole(CPU).shape
    assert (kept.whole(DEVICE) - expected).abs().le(DIGIT[state] * largest).all()


@given(SHAPES, st.sampled_from(STATES), st.sampled_from(sorted(PLACES)))
def test_its_bytes_are_counted(shape: tuple[int, ...], state: str, place: str) -> None:
    kept = filled(shape, state, 0, place)
    allocated = sum(
        tensor.untyped_storage().nbytes() if tensor.numel() else 0 for tensor in kept.tensors()
    )
    assert held_bytes(shape, state) == allocated  # type: ignore[arg-type]


@pytest.mark.parametrize("state", STATES)
def test_a_saved_one_is_the_same_bit_for_bit(state: str) -> None:
    kept = filled((3, 100), state, 0)
    loaded = PLACES["pinned"].load(kept.state_dict())
    assert all(map(same_bits, kept.tensors(), loaded.tensors()))
    assert loaded.fits((3, 100), state)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", STATES)
def test_many_small_additions_arrive_on_average(state: str) -> None:
    # A hundredth of a digit each: rounded to the nearest, none of them would be seen.
    kept, one = filled((2000,), state, 0), torch.full((2000,), 1e-4)
    before = kept.whole(CPU).clone()
    for count in range(100):
        kept.add(0, one, 1.0, seed_of(count, "weight"))
    assert pytest.approx(0.01, rel=0.15) == float((kept.whole(CPU) - before).mean())


@pytest.mark.parametrize("state", STATES)
def test_pieces_are_places_of_the_whole(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_tensors, "PIECE", 512)
    whole, parts = filled((1300,), state, 3), PLACES["host"].zeros((1300,), state)  # type: ignore[arg-type]
    found = list(pieces(1300))
    assert [(0, 512), (512, 1024), (1024, 1280), (1280, 1300)] == found
    for start, stop in found:
        parts.add(start, whole.whole(CPU)[start:stop], 1.0, seed=start)
    torch.testing.assert_close(parts.whole(CPU), whole.whole(CPU), rtol=1e-6, atol=1e-6)


def test_seeds_differ_by_what_they_are_for_and_fit_32_bits() -> None:
    seeds = {seed_of(count, name, row) for count in (0, 1) for name in "ab" for row in (0, 1)}
    assert 8 == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("seed", [None, 3])
def test_a_jump_of_a_weight_has_the_bits_of_the_op(dtype: torch.dtype, seed: int | None) -> None:
    generator = torch.Generator().manual_seed(1)
    for elements in (3, 5_000, PLAIN + 1):
        start = torch.randn(elements, generator=generator, device="cpu").to(DEVICE, dtype)
        delta = torch.randn(elements, generator=generator, device="cpu").to(DEVICE)
        delta[:2] = torch.tensor([torch.nan, torch.inf])
        for scale in (1.0, 0.5, 0.1):
            got, expected = start.clone(), start.clone()
            OPS.add_to(got, delta, scale, seed)
            factor = torch.tensor(scale, device=DEVICE)
            apply_delta([expected], [delta], factor, seed is not None, seed or 0)
            torch.testing.assert_close(got, expected, rtol=0.0, atol=0.0, equal_nan=True)
