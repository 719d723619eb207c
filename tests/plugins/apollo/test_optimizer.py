"""APOLLO as a torch optimizer: the paper's algorithm, its state, its limiter, refusals."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from stepped_alone import gradient, same, train, weights
from torch import nn

from neaptide_plugins.apollo.optimizer import Apollo
from neaptide_plugins.apollo.projection import gaussian
from neaptide_toolkit.optim.rounding import seed_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("on_device")

SHAPES = [(12, 20), (20, 12), (9, 9), (5,), (), (0, 2), (2, 3, 4), (2, 6)]
MINI: dict[str, Any] = {"rank": 1, "scale_type": "tensor", "alpha": 128**0.5}


def as_in_the_paper(
    w: torch.Tensor,
    place: int,
    steps: int,
    lr: float,
    *,
    rank: int = 2,
    scale_type: str = "channel",
    alpha: float = 1.0,
    update_proj_gap: int = 200,
    gamma: float = 1.01,
    weight_decay: float = 0.0,
    seed: int = 0,
) -> torch.Tensor:
    """Return a matrix of float64 after algorithm 1, line by line, with the plugin's draws."""
    turned = w.shape[0] >= w.shape[1]  # the paper has m <= n: the smaller side first
    w = w.T if turned else w
    (m, n), beta1, beta2, last = w.shape, 0.9, 0.999, None
    first, second = (torch.zeros(rank, n, dtype=w.dtype) for _ in range(2))
    for t in range(1, steps + 1):
        if (t - 1) % update_proj_gap == 0:
            draws = gaussian(seed_of(seed, (t - 1) // update_proj_gap, place, 1), rank * m, w)
            p = draws.view(rank, m) / rank**0.5
        g = gradient(t - 1, w.T).T if turned else gradient(t - 1, w)
        r = p @ g
        first = beta1 * first + (1 - beta1) * r
        second = beta2 * second + (1 - beta2) * r * r
        tilde = (first / (1 - beta1**t)) / ((second / (1 - beta2**t)).sqrt() + 1e-8)
        if scale_type == "channel":
            s = tilde.norm(dim=0) / r.norm(dim=0)
            change = alpha * g @ torch.diag(s)
        else:
            change = alpha * g * (tilde.norm() / r.norm())
        size = change.norm()
        if last is not None and gamma and size / last > gamma:
            change = change / size * gamma * last
        last = change.norm()
        w = w - lr * change - lr * weight_decay * w
    return w.T if turned else w


@pytest.mark.parametrize("shape", [(12, 20), (20, 12), (9, 9)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"rank": 3},
        {"rank": 3, "gamma": 0.0, "weight_decay": 0.1},
        {"rank": 2, "update_proj_gap": 7, "gamma": 1.2, "seed": 5},
        MINI,
        MINI | {"update_proj_gap": 1, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_it_is_the_algorithm_of_the_paper_over_a_thousand_updates(
    shape: tuple[int, int], options: dict[str, Any]
) -> None:
    bias, param = weights([(3,), shape], dtype=torch.float64)
    expected = as_in_the_paper(param.detach(), 1, 1000, 0.01, **options)
    train(Apollo([bias, param], lr=0.01, **options), 1000)

    torch.testing.assert_close(param.detach(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{"rank": 3}, MINI], ids=["channel", "tensor"])
def test_in_float32_it_stays_near_the_algorithm(options: dict[str, Any]) -> None:
    (param,) = weights([(12, 20)])
    start = param.detach().clone()
    expected = as_in_the_paper(start.double(), 0, 1000, 0.01, **options)
    train(Apollo([param], lr=0.01, **options), 1000)

    moved = float((expected - start).norm())
    assert float((param.detach().double() - expected).norm()) < 1e-3 * moved


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(5,), (), (2, 3, 4), (1, 6), (12, 20)], ids=str)
def test_what_is_not_projected_is_updated_by_adamw(shape: tuple[int, ...], decay: float) -> None:
    (ours,), (theirs,) = (weights([shape], dtype=torch.float64) for _ in range(2))
    kind = "adamw" if shape == (12, 20) else "apollo"
    train(Apollo([ours], lr=0.01, weight_decay=decay, kind=kind), 1000)
    train(torch.optim.AdamW([theirs], lr=0.01, weight_decay=decay), 1000)

    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, MINI], ids=["channel", "tensor"])
def test_state_is_small_and_goes_on_bit_for_bit(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    whole = weights(SHAPES, dtype=dtype)
    optimizer = Apollo(whole, lr=0.01, weight_decay=0.1, update_proj_gap=2, **options)
    train(optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    kept = [nn.Parameter(weight.detach().clone()) for weight in whole]
    train(optimizer, 4, first=3)

    again = Apollo(kept, **options)
    again.load_state_dict(saved)
    train(again, 4, first=3)

    assert same(whole, kept)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    rank = {(12, 20): 3, (20, 12): 3, (9, 9): 2, (2, 6): 1}
    for param in kept:
        state = {name: value for name, value in again.state[param].items() if name != "step"}
        shape = tuple(param.shape)
        assert {wide} == {value.dtype for value in state.values()}
        assert (shape in rank) == ("norm" in state)
        if shape in rank:
            r = 1 if options else rank[shape]
            projection = [shape[0], r] if shape[0] >= shape[1] else [r, shape[1]]
            assert [projection] * 2 == [list(state[n].shape) for n in ("exp_avg", "exp_avg_sq")]
        else:
            assert param.shape == state["exp_avg"].shape == state["exp_avg_sq"].shape


def test_weights_of_one_shape_are_projected_by_different_numbers() -> None:
    def left(seed: int) -> list[torch.Tensor]:
        pair = weights([(12, 20)]) + weights([(12, 20)])
        train(Apollo(pair, lr=0.01, seed=seed), 3)
        return [param.detach() for param in pair]

    first, second = left(0)
    assert not torch.equal(first, second)
    assert same(left(0), [first, second])
    assert not torch.equal(first, left(1)[0])


def test_a_projection_is_redrawn_when_it_is_due() -> None:
    def left(gap: int, steps: int) -> torch.Tensor:
        (param,) = weights([(12, 20)])
        train(Apollo([param], lr=0.01, update_proj_gap=gap), steps)
        return param.detach()

    assert torch.equal(left(4, 4), left(200, 4))
    assert not torch.equal(left(4, 5), left(200, 5))


def test_an_update_grows_by_a_hundredth_at_most() -> None:
    (param,) = weights([(12, 20)], dtype=torch.float64)
    optimizer = Apollo([param], lr=1.0)
    sizes = []
    for step in range(30):
        before = param.detach().clone()
        # The direction of an update is AdamW's, so its size jumps when gradients grow.
        param.grad = gradient(step, param) * (1e3 if step % 7 == 3 else 1.0)
        optimizer.step()
        sizes.append(float((param.detach() - before).norm()))
    ratios = [later / earlier for earlier, later in itertools.pairwise(sizes)]
    assert max(ratios) == pytest.approx(1.01)


@pytest.mark.parametrize("options", [{}, MINI], ids=["channel", "tensor"])
def test_a_gradient_of_zeros_moves_nothing_and_stops_nothing(options: dict[str, Any]) -> None:
    (param,) = weights([(12, 20)])
    optimizer = Apollo([param], lr=0.01, **options)
    for step in range(6):
        before = param.detach().clone()
        param.grad = gradient(step, param) * (step % 3 != 0)
        optimizer.step()
        moved = float((param.detach() - before).norm())
        assert moved > 1e-2 if step % 3 else moved == 0


def test_a_channel_of_zeros_stays() -> None:
    (param,) = weights([(12, 20)])
    before = param.detach().clone()
    optimizer = Apollo([param], lr=0.01)
    for step in range(3):
        param.grad = gradient(step, param)
        param.grad[:, 4] = 0
        optimizer.step()
    changed = (param.detach() != before).any(dim=0)
    assert [column != 4 for column in range(20)] == changed.tolist()


@pytest.mark.usefixtures("on_cpu")  # the simulated GPU has no sparse tensors
def test_what_cannot_be_updated_is_refused_in_one_line() -> None:
    def refused(act: Callable[[], Any]) -> str:
        with pytest.raises(ValueError, match="Apollo") as caught:
            act()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (plain,) = weights([(12, 20)])
    wrong: dict[str, Any] = {
        "lr": -1.0,
        "kind": "muon",
        "rank": -1,
        "scale_type": "row",
        "alpha": 0.0,
        "update_proj_gap": 0,
        "gamma": 0.5,
        "betas": (0.9, 1.0),
        "eps": 0.0,
        "weight_decay": -0.1,
    }
    for name, value in wrong.items():
        assert f"{name} is out of range (got {value!r})" in refused(
            lambda name=name, value=value: Apollo([plain], **{name: value})
        )
    sparse = nn.Embedding(4, 4, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    assert "dense gradients" in refused(lambda: Apollo(sparse.parameters()).step())

    optimizer = Apollo([plain])
    train(optimizer, 1)
    saved = optimizer.state_dict()
    assert (
        "'exp_avg' of parameter 0 is [3, 20] in the state; Apollo needs [5, 20]; load"
        in refused(lambda: Apollo([plain], rank=5).load_state_dict(saved))
    )
    adam = torch.optim.AdamW([plain])
    train(adam, 1)
    assert "has exp_avg, exp_avg_sq, step, but Apollo needs exp_avg, exp_avg_sq, norm" in refused(
        lambda: Apollo([plain]).load_state_dict(adam.state_dict())
    )
