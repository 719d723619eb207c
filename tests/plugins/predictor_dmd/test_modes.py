"""Decays and oscillations go on exactly, growth is stopped, what spans nothing is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE

from neaptide_plugins.predictor_dmd.modes import forecast

pytestmark = pytest.mark.usefixtures("on_device")

SEEDS = st.integers(0, 99)


def vectors(count: int, seed: int) -> torch.Tensor:
    """Return float64 `[count, 50]`."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(count, 50, generator=generator, dtype=torch.float64)


def predicted(
    path: torch.Tensor, ahead: float, rank: int = 3, damping: float = 1.0
) -> torch.Tensor | None:
    """Return the change that is proposed after the snapshots `path`, `[snapshots, n]`."""
    steps = path.diff(dim=0)
    found = forecast(steps @ steps.T, rank=rank, ahead=ahead, damping=damping)
    return None if found is None else torch.tensor(found, dtype=torch.float64) @ path


@given(st.floats(0.1, 0.99), st.floats(0.1, 50.0), st.integers(3, 12), st.integers(1, 3), SEEDS)
def test_a_geometric_decay_goes_on_exactly(
    ratio: float, ahead: float, snapshots: int, rank: int, seed: int
) -> None:
    start, direction = vectors(2, seed)
    path = torch.stack([start + direction * ratio**time for time in range(snapshots)])
    end = ratio ** (snapshots - 1)
    expected = direction * end * (ratio**ahead - 1.0)
    found = predicted(path, ahead, min(rank, snapshots - 2))
    assert found is not None
    assert (found - expected).norm() <= 1e-5 * direction.norm() * end * ahead


@given(st.floats(-1, 1), st.floats(0.1, 50.0), st.integers(3, 12), SEEDS)
def test_a_line_goes_on_exactly(slope: float, ahead: float, snapshots: int, seed: int) -> None:
    start, direction = vectors(2, seed)
    slope = math.copysign(max(abs(slope), 1e-3), slope)
    path = torch.stack([start + direction * slope * time for time in range(snapshots)])
    found = predicted(path, ahead, 1)
    assert found is not None
    torch.testing.assert_close(found, direction * slope * ahead, rtol=1e-5, atol=1e-8)


@given(st.floats(0.3, 0.98), st.floats(0.2, 2.5), st.integers(1, 30), SEEDS)
def test_a_damped_oscillation_beside_a_decay_goes_on_exactly(
    radius: float, angle: float, ahead: int, seed: int
) -> None:
    start, cosine, sine, decay = vectors(4, seed)

    def at(time: float) -> torch.Tensor:
        turned = cosine * math.cos(angle * time) + sine * math.sin(angle * time)
        return start + radius**time * turned + 0.6**time * decay

    path = torch.stack([at(time) for time in range(8)])
    found = predicted(path, ahead, 3)
    assert found is not None
    torch.testing.assert_close(found, at(7 + ahead) - at(7), rtol=1e-3, atol=1e-4)


@given(st.floats(1.01, 1.5), st.integers(1, 200))
def test_growth_goes_on_as_a_line_at_most(ratio: float, ahead: int) -> None:
    start, direction = vectors(2, 0)
    path = torch.stack([start + direction * ratio**time for time in range(6)])
    found = predicted(path, ahead, 1)
    assert found is not None
    last = (path[-1] - path[-2]).norm()
    assert found.norm() <= ratio * last * ahead * 1.0001
    damped = predicted(path, ahead, 1, damping=0.5)
    assert damped is not None
    assert damped.norm() <= 2.0001 * ratio * last


@given(st.integers(3, 10), st.integers(1, 8), SEEDS, st.floats(0.1, 40))
def test_coefficients_add_up_to_zero(snapshots: int, rank: int, seed: int, ahead: float) -> None:
    steps = vectors(snapshots, seed).cumsum(0).diff(dim=0)
    found = forecast(steps @ steps.T, rank=min(rank, snapshots - 2), ahead=ahead, damping=1.0)
    if found is not None:
        assert abs(sum(found)) <= 1e-9 * max(map(abs, found))


@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
def test_what_spans_nothing_is_refused(value: float) -> None:
    gram = torch.full((4, 4), value, dtype=torch.float64)
    assert forecast(gram, rank=2, ahead=3.0, damping=1.0) is None
