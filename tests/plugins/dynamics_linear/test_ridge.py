from __future__ import annotations

import pytest
import torch

from neaptide_plugins.dynamics_linear.ridge import Ridge

INPUTS = 6


def ridge(penalty: float, power: float = 0.0, plain: int = 2) -> Ridge:
    return Ridge(torch.full((1 + INPUTS,), penalty, dtype=torch.float64), plain, power)


def samples(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, INPUTS, generator=generator, dtype=torch.float64)
    inputs = inputs * torch.tensor([1.0, 2.0, 5.0, 0.1, 1.0, 1.0]) + 3.0
    weights = torch.tensor([0.3, -0.2, 0.05, 2.0, 0.0, 0.1], dtype=torch.float64)
    return inputs, inputs @ weights + 0.7


def learned(model: Ridge, count: int, seed: int = 0) -> Ridge:
    for row, target in zip(*samples(count, seed), strict=True):
        model.learn(row, float(target))
    model.fit()
    return model


def test_without_samples_the_answer_is_zero() -> None:
    assert 0.0 == ridge(1.0).predict(torch.ones(INPUTS, dtype=torch.float64))


def test_it_finds_a_line_from_enough_samples() -> None:
    model = learned(ridge(1e-6), 200)
    inputs, targets = samples(20, seed=1)
    for row, target in zip(inputs, targets, strict=True):
        assert pytest.approx(float(target), abs=1e-2) == model.predict(row)


@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
def test_it_is_the_ridge_solution_in_standard_inputs(penalty: float) -> None:
    model = learned(ridge(penalty), 50)
    inputs, targets = samples(50)
    standard = (inputs - inputs.mean(0)) / inputs.std(0, correction=0)
    standard[:, :2] = inputs[:, :2]
    design = torch.cat([torch.ones(50, 1, dtype=torch.float64), standard], 1)
    # The penalty as rows of samples of their own.
    rows = torch.eye(1 + INPUTS, dtype=torch.float64) * penalty**0.5
    extended = torch.cat([targets, torch.zeros(1 + INPUTS, dtype=torch.float64)])
    expected = torch.linalg.lstsq(torch.cat([design, rows]), extended[:, None]).solution[:, 0]
    torch.testing.assert_close(model.weights, expected, rtol=1e-6, atol=1e-6)


def test_a_heavy_penalty_leaves_nothing() -> None:
    model = learned(ridge(1e12), 50)
    assert abs(model.predict(samples(1)[0][0])) < 1e-6


def test_an_input_that_never_changed_has_no_say() -> None:
    model = ridge(0.1)
    for row, target in zip(*samples(30), strict=True):
        row[4] = 7.0
        model.learn(row, float(target))
    model.fit()
    row = samples(1)[0][0]
    row[4] = 7.0
    before = model.predict(row)
    row[4] = 1e6
    assert before == model.predict(row)


def test_the_past_fades() -> None:
    model = ridge(1e-6, power=8.0)
    for row, target in zip(*samples(40), strict=True):
        model.learn(row, -float(target))
    for row, target in zip(*samples(160, seed=2), strict=True):
        model.learn(row, float(target))
    model.fit()
    inputs, targets = samples(20, seed=1)
    for row, target in zip(inputs, targets, strict=True):
        assert pytest.approx(float(target), abs=0.2) == model.predict(row)
