"""The MLP and the CNN: initialisation, buffers, loss and errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE

from neaptide_plugins.builtin_models import digits_cnn, mlp
from neaptide_plugins.builtin_models.config import DigitsCnnOptions, MlpOptions

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.usefixtures("on_device")


def batch(rows: int = 32) -> dict[str, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    return {
        "x": torch.rand(rows, 1, 8, 8, generator=generator),
        "y": torch.randint(0, 10, (rows,), generator=generator),
    }


@pytest.mark.parametrize(
    ("mechanism", "options", "parameters"),
    [
        (mlp, MlpOptions(), 42_634),
        (digits_cnn, DigitsCnnOptions(), 56_554),
        (digits_cnn, DigitsCnnOptions(norm=False), 56_394),
    ],
)
def test_a_fresh_classifier_guesses_and_counts_its_examples(
    mechanism: ModuleType, options: Any, parameters: int
) -> None:
    torch.manual_seed(0)
    model = mechanism.build(options)

    total, count = mechanism.loss(model, batch())

    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert count == 32
    assert total.item() / count == pytest.approx(math.log(10), abs=0.7)


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [(mlp, MlpOptions(width=32)), (digits_cnn, DigitsCnnOptions(channels=4))],
)
def test_a_few_updates_lower_the_loss(mechanism: ModuleType, options: Any) -> None:
    torch.manual_seed(0)
    model = mechanism.build(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    losses = []
    for _ in range(20):
        total, count = mechanism.loss(model, batch())
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        losses.append(total.item() / count)

    assert losses[-1] < losses[0] - 0.5


def test_initial_mlp_weights_have_the_stated_spread() -> None:
    torch.manual_seed(0)
    model = mlp.build(MlpOptions())

    hidden = model.get_parameter("blocks.1.linear.weight")

    assert hidden.std().item() == pytest.approx(math.sqrt(2 / 128), rel=0.05)
    assert model.head.weight.std().item() == pytest.approx(math.sqrt(1 / 128), rel=0.05)
    assert torch.count_nonzero(model.head.bias).item() == 0


def test_initial_convolutions_have_the_stated_spread() -> None:
    torch.manual_seed(0)
    model = digits_cnn.build(DigitsCnnOptions())

    last = model.get_parameter("blocks.3.conv.weight")

    assert last.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.05)


def test_layers_counts_the_hidden_layers() -> None:
    model = mlp.build(MlpOptions(inputs=6, width=8, layers=2, outputs=3))

    shapes = [list(parameter.shape) for parameter in model.parameters() if parameter.ndim > 1]

    assert shapes == [[8, 6], [8, 8], [3, 8]]


def test_training_moves_the_running_mean_and_evaluation_leaves_it() -> None:
    model = digits_cnn.build(DigitsCnnOptions(channels=4))
    mean = model.get_buffer("blocks.0.norm.running_mean")
    fresh = mean.clone()

    model.eval()(batch()["x"])
    assert torch.equal(mean, fresh)
    model.train()(batch()["x"])
    assert not torch.equal(mean, fresh)


def test_without_norm_there_are_no_buffers_and_convolutions_have_a_bias() -> None:
    model = digits_cnn.build(DigitsCnnOptions(norm=False))

    assert list(model.buffers()) == []
    assert model.get_parameter("blocks.0.conv.bias").shape == (32,)


def test_mlp_refuses_the_wrong_number_of_features_in_one_line() -> None:
    with pytest.raises(ValueError, match="inputs") as caught:
        mlp.build(MlpOptions(inputs=63))(batch()["x"])

    assert str(caught.value) == (
        "mlp takes 63 features an example, got 64 (batch of shape [32, 1, 8, 8]): "
        "set the model's 'inputs' to match the data"
    )


def test_cnn_refuses_images_of_another_size_in_one_line() -> None:
    with pytest.raises(ValueError, match="digits-cnn") as caught:
        digits_cnn.build(DigitsCnnOptions())(torch.zeros(2, 1, 28, 28))

    expected = "digits-cnn takes images of shape [batch, 1, 8, 8], got [2, 1, 28, 28]"
    assert str(caught.value) == expected
