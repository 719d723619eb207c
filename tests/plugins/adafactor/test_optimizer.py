"""Adafactor as a torch optimizer: the paper's algorithm, its factors, its state, refusals."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from stepped_alone import gradient, train, weights
from torch import nn

from neaptide_plugins.adafactor.factors import factored_dims
from neaptide_plugins.adafactor.optimizer import Adafactor

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("on_device")

SHAPES = [(6, 4), (5,), (), (0, 2), (2, 3, 5), (4, 1)]


def rms(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean().sqrt()


def as_in_the_paper(
    x: torch.Tensor,
    steps: int,
    lr: float,
    *,
    decay_rate: float = 0.8,
    clip_threshold: float = 1.0,
    eps: tuple[float, float] = (1e-30, 1e-3),
    relative_step: bool = True,
    scale_parameter: bool = True,
    weight_decay: float = 0.0,
) -> torch.Tensor:
    """Return the weight after algorithm 4 (a matrix `[n, m]`) or 5 (a vector), line by line."""
    factored = x.dim() == 2 and min(x.shape) > 1
    r, c, v = torch.zeros(x.shape[:1]), torch.zeros(x.shape[-1:]), torch.zeros(x.shape)
    r, c, v = (each.to(x) for each in (r, c, v))
    for t in range(1, steps + 1):
        g = gradient(t - 1, x)
        rho = min(lr, 1 / math.sqrt(t)) if relative_step else lr
        alpha = max(eps[1], rms(x).item()) * rho if scale_parameter else rho
        beta2 = 1 - t**-decay_rate
        squares = g * g + eps[0]
        if factored:
            r = beta2 * r + (1 - beta2) * squares.sum(1)
            c = beta2 * c + (1 - beta2) * squares.sum(0)
            v = torch.outer(r, c) / r.sum()
        else:
            v = beta2 * v + (1 - beta2) * squares
        u = g / v.sqrt()
        u = u / max(1.0, rms(u).item() / clip_threshold)
        x = x - lr * weight_decay * x - alpha * u
    return x


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"relative_step": False},
        {"scale_parameter": False, "weight_decay": 0.1},
        {"clip_threshold": 0.3, "decay_rate": 0.6, "eps": (1e-3, 10.0)},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(6, 4), (7, 5), (5,), (), (4, 1)], ids=str)
def test_it_is_the_algorithm_of_the_paper_over_a_thousand_updates(
    shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    (param,) = weights([shape], dtype=torch.float64)
    expected = as_in_the_paper(param.detach(), 1000, 0.01, **options)
    train(Adafactor([param], lr=0.01, **options), 1000)

    torch.testing.assert_close(param.detach(), expected, rtol=1e-10, atol=1e-10)


def test_a_stack_is_updated_as_its_matrices_up_to_the_mean_squares() -> None:
    options: dict[str, Any] = {"scale_parameter": False, "clip_threshold": 1e6, "lr": 0.01}
    (stack,) = weights([(3, 6, 5)], dtype=torch.float64)
    alone = [nn.Parameter(matrix.clone()) for matrix in stack.detach()]
    together, apart = Adafactor([stack], **options), Adafactor(alone, **options)
    for step in range(5):
        stack.grad = gradient(step, stack)
        for matrix, grad in zip(alone, stack.grad, strict=True):
            matrix.grad = grad.clone()
        together.step()
        apart.step()

    torch.testing.assert_close(stack, torch.stack(alone), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((6, 4), (0, 1)),
        ((8, 3, 3, 3), (0, 3)),
        ((8, 4, 3, 3), (0, 1)),
        ((2, 9, 9), (1, 2)),
        ((2, 2), None),
        ((6, 1), None),
        ((6,), None),
        ((), None),
        ((0, 9), None),
    ],
    ids=str,
)
def test_the_two_largest_dimensions_are_factored_if_this_is_smaller(
    shape: tuple[int, ...], dims: tuple[int, int] | None
) -> None:
    assert dims == factored_dims(shape)
    (param,) = weights([shape])
    optimizer = Adafactor([param])
    train(optimizer, 1)
    state = {name: list(value.shape) for name, value in optimizer.state[param].items()}
    row, column = list(shape), list(shape)
    if dims is None:
        assert {"step": [], "variance": list(shape)} == state
    else:
        row[dims[1]] = column[dims[0]] = 1
        assert {"step": [], "row_var": row, "col_var": column} == state


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_state_is_at_least_float32_and_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    whole = weights(SHAPES, dtype=dtype)
    optimizer = Adafactor(whole, lr=0.1)
    train(optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    kept = [nn.Parameter(weight.detach().clone()) for weight in whole]
    train(optimizer, 4, first=3)

    again = Adafactor(kept)
    again.load_state_dict(saved)
    train(again, 4, first=3)

    assert all(map(torch.equal, whole, kept))
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    for param in kept:
        state = dict(again.state[param])
        assert 7.0 == state.pop("step")
        assert {wide} == {value.dtype for value in state.values()}


def test_of_bfloat16_weights_the_moment_follows_the_gradients() -> None:
    (param,) = weights([(64, 64)], dtype=torch.bfloat16)
    optimizer = Adafactor([param], lr=1e-9)
    for step in range(2200):
        param.grad = torch.full_like(param, 1.0 if step < 2000 else 0.5)
        optimizer.step()
    share = math.prod(1 - (step + 1) ** -0.8 for step in range(2000, 2200))

    expected = torch.full((64, 1), share + (1 - share) * 0.25)
    torch.testing.assert_close(optimizer.state[param]["row_var"], expected, rtol=1e-3, atol=0)


def test_a_gradient_of_zeros_changes_nothing() -> None:
    params = weights(SHAPES)
    before = [param.detach().clone() for param in params]
    for param in params:
        param.grad = torch.zeros_like(param)
    Adafactor(params).step()

    assert all(map(torch.equal, before, params))


@pytest.mark.usefixtures("on_cpu")  # the simulated GPU has no sparse tensors
def test_what_cannot_be_updated_is_refused_in_one_line() -> None:
    def refused(act: Callable[[], Any]) -> str:
        with pytest.raises(ValueError, match="Adafactor") as caught:
            act()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (plain,) = weights([(4, 3)])
    plain.grad = torch.ones_like(plain)
    optimizer = Adafactor([plain])
    optimizer.step()
    sparse = nn.Embedding(4, 4, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    adam = torch.optim.Adam([plain])
    adam.step()
    other = weights([(5, 3)])

    assert "dense gradients" in refused(lambda: Adafactor(sparse.parameters()).step())
    assert "lr is out of range (got -1.0)" in refused(lambda: Adafactor([plain], lr=-1.0))
    assert "decay_rate is out" in refused(lambda: Adafactor([plain], decay_rate=-0.8))
    assert "clip_threshold is out" in refused(lambda: Adafactor([plain], clip_threshold=0.0))
    assert "eps is out" in refused(lambda: Adafactor([plain], eps=(0.0, 1e-3)))
    assert "relative_step is out" in refused(lambda: Adafactor([plain], relative_step=1))  # type: ignore[arg-type]  # as a user may
    assert "weight_decay is out" in refused(lambda: Adafactor([plain], weight_decay=-0.1))
    assert "has exp_avg, exp_avg_sq, step, but Adafactor needs col_var, row_var, step" in refused(
        lambda: optimizer.load_state_dict(adam.state_dict())
    )
    assert "'row_var' of parameter 0 is [4, 1] in the state; Adafactor needs [5, 1]" in refused(
        lambda: Adafactor(other).load_state_dict(optimizer.state_dict())
    )
    assert "no real floating dtype" in refused(
        lambda: optimizer.add_param_group({"params": weights([(2,)], dtype=torch.cfloat)})
    )
    assert 1 == len(optimizer.param_groups)
