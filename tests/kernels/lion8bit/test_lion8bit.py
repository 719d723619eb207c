"""8-bit Lion beside Lion in float32."""

from typing import Any

import pytest
import torch

from neaptide_kernels import state_codes
from neaptide_kernels.lion8bit import lion8bit_step, new_state

pytestmark = pytest.mark.usefixtures("on_device")


def lists(params: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    return [list(each) for each in zip(*map(new_state, params), strict=True)]


def stepped(
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    state: list[list[torch.Tensor]],
    lr: float = 1e-3,
    **options: Any,
) -> None:
    for step in state[-1]:
        step.add_(1)
    lion8bit_step(params, grads, *state, torch.tensor(lr), **options)


def test_updates_stay_near_those_of_lion() -> None:
    torch.manual_seed(0)
    ours, theirs, mean = torch.ones(40, 64), torch.ones(40, 64), torch.zeros(40, 64)
    state = lists([ours])
    rows = torch.exp(2 * torch.randn(40, 1))
    for _ in range(200):
        grad = rows * (torch.randn(40, 64) + 0.3)
        stepped([ours], [grad], state, weight_decay=0.1)
        theirs = theirs * (1 - 1e-3 * 0.1) - 1e-3 * (0.9 * mean + 0.1 * grad).sign()
        mean = 0.99 * mean + 0.01 * grad

    assert (ours - theirs).norm() / (theirs - 1).norm() < 0.1
    decoded = state_codes.decode_signed(state[0][0], state[1][0])
    assert (decoded - mean.flatten()).norm() / mean.norm() < 0.1


def test_a_momentum_of_tiny_constant_gradients_does_not_stall() -> None:
    sizes = torch.logspace(-2, 0, 2560)
    weight, state = torch.zeros(2560), lists([torch.zeros(2560)])
    stepped([weight], [1e-3 * sizes.flip(0)], state)
    for _ in range(1000):
        stepped([weight], [1e-6 * sizes], state)

    decoded = state_codes.decode_signed(state[0][0], state[1][0])
    assert abs((decoded / (1e-6 * sizes)).mean().item() - 1) < 0.02


def test_nothing_moves_without_gradients_and_nan_is_kept() -> None:
    weight = torch.ones(300)
    state = lists([weight])
    gradient = torch.zeros(300)
    gradient[5] = torch.nan

    stepped([weight], [gradient], state)

    assert [5] == weight.isnan().nonzero().flatten().tolist()
    assert (weight[6:] == 1).all()
    decoded = state_codes.decode_signed(state[0][0], state[1][0])
    assert decoded[:256].isnan().all()
    assert (decoded[256:] == 0).all()


def test_the_same_call_gives_the_same_bits() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        params = [torch.randn(300).bfloat16(), torch.randn(7, 9).bfloat16()]
        state = lists(params)
        for _ in range(5):
            stepped(params, [torch.randn_like(each) for each in params], state, seed=3)
        return [*params, *(tensor for each in state for tensor in each)]

    assert all(map(torch.equal, run(), run()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": [torch.ones(4).half()]}, "updates float32 and bfloat16 (params[0] is torch.f"),
        ({"exp_avg_scale": [torch.zeros(2)]}, "must be contiguous torch.float32 [1]"),
        ({"beta1": -0.1}, "beta1 must be in [0, 1) (got -0.1)"),
    ],
)
def test_what_does_not_go_together_is_one_line(change: dict[str, Any], message: str) -> None:
    names = ("exp_avg", "exp_avg_scale", "steps")
    arguments: dict[str, Any] = {"params": [torch.ones(4)], "grads": [torch.ones(4)]}
    arguments |= dict(zip(names, lists([torch.ones(4)]), strict=True)) | {"lr": torch.tensor(0.1)}

    with pytest.raises(ValueError, match="lion8bit_step") as caught:
        lion8bit_step(**(arguments | change))

    assert message in str(caught.value)


def test_state_takes_a_byte_and_a_bit_for_an_element() -> None:
    state = new_state(torch.empty(1 << 20, dtype=torch.bfloat16))

    assert 1.02 == round(sum(tensor.nbytes for tensor in state) / (1 << 20), 2)
