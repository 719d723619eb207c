"""8-bit Adam beside torch's AdamW, and the limits of its rounding."""

from typing import Any

import pytest
import torch

from neaptide_kernels import state_codes
from neaptide_kernels.adam8bit import adam8bit_step, new_state

pytestmark = pytest.mark.usefixtures("on_device")


def lists(params: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    return [list(each) for each in zip(*map(new_state, params), strict=True)]


def stepped(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    state: list[list[torch.Tensor]],
    lr: float = 1e-2,
    **options: Any,
) -> None:
    for step in state[-1]:
        step.add_(1)
    adam8bit_step(params, grads, *state, torch.tensor(lr), **options)


def decoded(state: list[list[torch.Tensor]], place: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    mean, square, mean_scale, square_scale, _ = (each[place] for each in state)
    return (
        state_codes.decode_signed(mean, mean_scale),
        state_codes.decode_unsigned(square, square_scale),
    )


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_first_update_is_that_of_adamw(weight_decay: float) -> None:
    torch.manual_seed(0)
    ours, theirs = torch.randn(50, 60), torch.nn.Parameter(torch.empty(50, 60))
    theirs.data.copy_(ours)
    theirs.grad = torch.randn(50, 60)

    torch.optim.AdamW([theirs], lr=1e-2, weight_decay=weight_decay).step()
    stepped([ours], [theirs.grad], lists([ours]), weight_decay=weight_decay)

    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-6)


def test_updates_stay_near_those_of_adamw() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.zeros(40, 64), torch.nn.Parameter(torch.zeros(40, 64))
    optimizer, state = torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0.0), lists([ours])
    rows = torch.exp(2 * torch.randn(40, 1))
    for _ in range(200):
        theirs.grad = rows * (torch.randn(40, 64) + 0.3)
        stepped([ours], [theirs.grad], state, weight_decay=0.0)
        optimizer.step()

    gap = (ours - theirs.detach()).norm() / theirs.detach().norm()
    assert gap < 0.1


def test_averages_of_tiny_constant_gradients_do_not_stall() -> None:
    """A constant gradient g ends at m = g and v = g**2, from ten times too much of both."""
    sizes = torch.logspace(-2, 0, 2560)
    weight, state = torch.zeros(2560), lists([torch.zeros(2560)])
    for _ in range(10):
        stepped([weight], [1e-5 * sizes], state, beta2=0.9)
    for _ in range(1000):
        stepped([weight], [1e-6 * sizes], state, beta2=0.99)
    mean, square = decoded(state)

    assert abs((mean / (1e-6 * sizes)).mean().item() - 1) < 0.02
    assert abs((square / (1e-12 * sizes**2)).mean().item() - 1) < 0.05


def test_bfloat16_weights_move_by_updates_below_half_a_last_place() -> None:
    """1000 updates of 1e-4 take a weight of 1, whose last place is 8e-3, to 0.9."""
    weight = torch.ones(4096, dtype=torch.bfloat16)
    state = lists([weight])
    for _ in range(1000):
        stepped([weight], [torch.ones_like(weight)], state, lr=1e-4, weight_decay=0.0)

    assert abs(weight.double().mean().item() - 0.9) < 2e-3


def test_an_update_is_bounded_where_the_second_moment_is_least() -> None:
    """Beside a gradient a million times as large, no small one is divided by a rounded zero."""
    torch.manual_seed(0)
    weight = torch.zeros(256)
    state = lists([weight])
    gradient = 1e-6 * torch.randn(256)
    gradient[0] = 1.0
    for _ in range(300):
        before = weight.clone()
        stepped([weight], [gradient], state, lr=1.0, weight_decay=0.0)
        assert (weight - before).abs().max() < 15
    _, square = decoded(state)
    assert (square > 0).all()


def test_the_same_call_gives_the_same_bits() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        params = [torch.randn(300).bfloat16(), torch.randn(7, 9).bfloat16()]
        state = lists(params)
        for _ in range(5):
            stepped(params, [torch.randn_like(each) for each in params], state, seed=3)
        return [*params, *(tensor for each in state for tensor in each)]

    assert all(map(torch.equal, run(), run()))


def test_work_in_pieces_is_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    whole = torch.randn(3000)
    parts, gradient = whole.clone(), torch.randn(3000)
    one, other = lists([whole]), lists([parts])

    stepped([whole], [gradient], one)
    monkeypatch.setattr(state_codes, "PIECE", 512)
    stepped([parts], [gradient], other)

    assert torch.equal(whole, parts)
    assert all(
        torch.equal(*pair)
        for pairs in zip(one, other, strict=True)
        for pair in zip(*pairs, strict=True)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": [torch.ones(4).half()]}, "updates float32 and bfloat16 (params[0] is torch.f"),
        ({"grads": [torch.ones(5)]}, "grads[0] is torch.strided torch.float32 [5]; params[0] of s"),
        ({"grads": [torch.ones(4).to_sparse()]}, "takes a dense float32 or bfloat16 one"),
        ({"grads": []}, "got 1 params and 0 grads"),
        ({"exp_avg": [torch.zeros(4)]}, "exp_avg[0] is torch.float32 [4]; it must be contiguous"),
        ({"exp_avg_sq_scale": [torch.zeros(2)]}, "must be contiguous torch.float32 [1]"),
        ({"steps": [torch.tensor(1)]}, "steps[0] is torch.int64 []"),
        ({"lr": torch.ones(1)}, "lr is torch.float32 [1]"),
        ({"beta2": 1.0}, "beta2 must be in [0, 1) (got 1.0)"),
        ({"weight_decay": -1.0}, "weight_decay must be finite and at least 0 (got -1.0)"),
        ({"eps": 0.0}, "eps must be more than 0"),
    ],
)
def test_what_does_not_go_together_is_one_line(change: dict[str, Any], message: str) -> None:
    names = ("exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale", "steps")
    arguments: dict[str, Any] = {"params": [torch.ones(4)], "grads": [torch.ones(4)]}
    arguments |= dict(zip(names, lists([torch.ones(4)]), strict=True)) | {"lr": torch.tensor(0.1)}

    with pytest.raises(ValueError, match="adam8bit_step") as caught:
        adam8bit_step(**(arguments | change))

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_state_takes_two_bytes_and_a_bit_for_an_element() -> None:
    state = new_state(torch.empty(1 << 20, dtype=torch.bfloat16))

    assert 2.03 == round(sum(tensor.nbytes for tensor in state) / (1 << 20), 2)
