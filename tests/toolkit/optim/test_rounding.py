"""16-bit weights that our torch optimizers round stochastically."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from neaptide_plugins.adafactor.optimizer import Adafactor
from neaptide_plugins.adam_mini.optimizer import AdamMini
from neaptide_plugins.ademamix.optimizer import AdEMAMix
from neaptide_plugins.apollo.optimizer import Apollo
from neaptide_plugins.lion.optimizer import Lion
from neaptide_toolkit.optim.rounding import NARROW, round_into, seed_of

if TYPE_CHECKING:
    from neaptide_toolkit.optim.foreach_optimizer import ForeachOptimizer

pytestmark = pytest.mark.usefixtures("on_device")

KINDS: dict[str, type[ForeachOptimizer]] = {
    "adafactor": Adafactor,
    "adam-mini": AdamMini,
    "ademamix": AdEMAMix,
    "apollo": Apollo,
    "lion": Lion,
}
UPDATES, LR = 400, 1e-5
SIZE = 4096


def moved(kind: type[ForeachOptimizer], dtype: torch.dtype, rounding: str) -> float:
    """Return by how much weights of 1 moved on average, where each update has the same sign."""
    weight = nn.Parameter(torch.ones(SIZE // 64, 64, dtype=dtype))
    constant = {"relative_step": False} if kind is Adafactor else {"weight_decay": 0.0}
    optimizer = kind([weight], lr=LR, rounding=rounding, **constant)
    for _ in range(UPDATES):
        weight.grad = torch.full_like(weight, 1e-2)
        optimizer.step()
    return 1 - float(weight.detach().float().mean())


@pytest.mark.parametrize("dtype", sorted(NARROW, key=str), ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_updates_below_the_last_digit_move_weights_on_average(
    name: str, dtype: torch.dtype
) -> None:
    expected = moved(KINDS[name], torch.float32, "nearest")
    assert 0.0 == moved(KINDS[name], dtype, "nearest")
    assert moved(KINDS[name], dtype, "stochastic") == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("dtype", sorted(NARROW, key=str), ids=str)
@given(
    value=st.floats(-100, 100, width=32).filter(lambda each: abs(each) > 0.001),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_value_becomes_a_neighbour_and_keeps_its_mean(
    value: float, seed: int, dtype: torch.dtype
) -> None:
    values = torch.full((SIZE,), value)
    rounded = torch.full_like(values, value, dtype=dtype)
    nearest = float(rounded[0])
    round_into(rounded, values.clone(), seed)
    step = abs(nearest) * 2 * torch.finfo(dtype).eps
    assert {*rounded.tolist()} <= {*_neighbours(nearest, dtype)}
    # The mean of n roundings has a standard deviation of at most half a step / sqrt(n).
    assert abs(float(rounded.double().mean()) - value) <= 6 * 0.5 * step / SIZE**0.5


def _neighbours(value: float, dtype: torch.dtype) -> list[float]:
    bits = torch.tensor(value, dtype=dtype).view(torch.int16)
    return [float((bits + by).view(dtype)) for by in (-1, 0, 1)]


@pytest.mark.parametrize("name", KINDS)
def test_weights_of_one_shape_get_different_bits(name: str) -> None:
    pair = [nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = KINDS[name](pair, lr=1e-3)
    for weight in pair:
        weight.grad = torch.full_like(weight, 1e-2)
    optimizer.step()
    first, second = (weight.detach() for weight in pair)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", KINDS)
def test_bits_depend_on_the_seed_and_on_the_update(name: str) -> None:
    def left(seed: int, updates: int) -> torch.Tensor:
        weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
        optimizer = KINDS[name]([weight], lr=1e-3, seed=seed)
        for _ in range(updates):
            with torch.no_grad():
                weight.fill_(1.0)
            weight.grad = torch.full_like(weight, 1e-2)
            optimizer.step()
        return weight.detach()

    assert torch.equal(left(0, 1), left(0, 1))
    assert not torch.equal(left(0, 1), left(1, 1))
    assert not torch.equal(left(0, 1), left(0, 2))


@pytest.mark.parametrize("name", KINDS)
def test_weights_of_32_bits_have_the_same_bits_either_way(name: str) -> None:
    def left(rounding: str) -> torch.Tensor:
        weight = nn.Parameter(torch.ones(8, 8))
        optimizer = KINDS[name]([weight], lr=1e-3, rounding=rounding)
        weight.grad = torch.linspace(-1, 1, 64).view(8, 8)
        optimizer.step()
        return weight.detach()

    assert torch.equal(left("nearest"), left("stochastic"))


@pytest.mark.parametrize("name", KINDS)
def test_a_state_from_before_the_option_gets_the_option(name: str) -> None:
    weight = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = KINDS[name]([weight], rounding="nearest", seed=3)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    for option in ("rounding", "seed"):
        del saved["param_groups"][0][option]
    optimizer.load_state_dict(saved)
    optimizer.step()
    assert ("nearest", 3) == tuple(optimizer.param_groups[0][key] for key in ("rounding", "seed"))


@pytest.mark.parametrize(("option", "value"), [("rounding", "up"), ("seed", -1)])
@pytest.mark.parametrize("name", KINDS)
def test_a_wrong_option_is_named(name: str, option: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{option} is out of range \(got {value!r}\)"):
        KINDS[name]([nn.Parameter(torch.ones(2))], **{option: value})


def test_seeds_of_a_run_differ() -> None:
    seeds = {
        seed_of(7, step, place, part)
        for step in range(1, 40)
        for place in range(40)
        for part in range(4)
    }
    assert 39 * 40 * 4 == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
