"""The byte GPT: size, initialisation, causality, loss and errors."""

from __future__ import annotations

import math

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide_plugins.builtin_models import byte_gpt
from neaptide_plugins.builtin_models.config import ByteGptOptions

pytestmark = pytest.mark.usefixtures("on_device")

SMALL = ByteGptOptions(layers=2, width=32, heads=2, context=16)


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator(DEVICE).manual_seed(0))


def test_the_defaults_give_870_656_parameters() -> None:
    model = byte_gpt.build(ByteGptOptions())

    assert sum(parameter.numel() for parameter in model.parameters()) == 870_656


def test_linears_have_no_bias_and_the_head_is_not_tied() -> None:
    model = byte_gpt.build(SMALL)

    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]

    assert [linear.bias for linear in linears] == [None] * 9
    assert model.head.weight is not model.embedding.weight


@pytest.mark.parametrize(
    ("name", "std"),
    [
        ("embedding.weight", 0.3),
        ("positions.weight", 0.3),
        ("blocks.0.attention.qkv.weight", 1 / math.sqrt(128)),
        ("blocks.3.up.weight", 1 / math.sqrt(128)),
        ("blocks.0.attention.out.weight", 1 / math.sqrt(128) / math.sqrt(8)),
        ("blocks.3.down.weight", 1 / math.sqrt(512) / math.sqrt(8)),
        ("head.weight", 1 / math.sqrt(128)),
    ],
)
def test_initial_weights_have_the_stated_spread(name: str, std: float) -> None:
    torch.manual_seed(0)

    weight = byte_gpt.build(ByteGptOptions()).get_parameter(name)

    assert weight.std().item() == pytest.approx(std, rel=0.05)
    assert weight.mean().item() == pytest.approx(0.0, abs=0.05 * std)


def test_the_same_seed_builds_the_same_model() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        states.append(byte_gpt.build(SMALL).state_dict())

    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_later_byte_leaves_earlier_logits_bitwise() -> None:
    torch.manual_seed(0)
    model = byte_gpt.build(SMALL).eval()
    before = tokens(2, 16)
    after = before.clone()
    after[:, 9] = (after[:, 9] + 1) % 256

    first, second = model(before), model(after)

    assert torch.equal(first[:, :9], second[:, :9])
    assert not torch.equal(first[:, 9:], second[:, 9:])


def test_an_untrained_model_scores_ln_256_and_half_a_nat() -> None:
    torch.manual_seed(0)

    total, count = byte_gpt.loss(byte_gpt.build(ByteGptOptions()), {"tokens": tokens(8, 129)})

    assert count == 8 * 128
    assert total.item() / count == pytest.approx(math.log(256) + 0.5, abs=0.15)


def test_losses_of_parts_add_up_to_the_loss_of_the_whole() -> None:
    model = byte_gpt.build(SMALL)
    whole = tokens(6, 17)

    total, count = byte_gpt.loss(model, {"tokens": whole})
    parts = [byte_gpt.loss(model, {"tokens": part}) for part in (whole[:2], whole[2:])]

    assert count == sum(part_count for _, part_count in parts)
    assert total.item() == pytest.approx(sum(part.item() for part, _ in parts), rel=1e-5)


def test_a_bfloat16_model_still_sums_its_loss_in_float32() -> None:
    model = byte_gpt.build(SMALL).to(torch.bfloat16)

    total, _ = byte_gpt.loss(model, {"tokens": tokens(2, 17)})

    assert total.dtype == torch.float32


def test_dropout_acts_in_training_only() -> None:
    model = byte_gpt.build(ByteGptOptions(layers=1, width=32, heads=2, context=16, dropout=0.5))
    batch = tokens(2, 16)

    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_a_few_updates_lower_the_loss() -> None:
    torch.manual_seed(0)
    model = byte_gpt.build(SMALL)
    batch = {"tokens": tokens(4, 17)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    losses = []
    for _ in range(10):
        total, count = byte_gpt.loss(model, batch)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        losses.append(total.item() / count)

    assert losses[-1] < losses[0] - 1.0


@pytest.mark.parametrize(
    ("shape", "reported"), [((2, 18), "[2, 17]"), ((2, 1), "[2, 0]"), ((2, 5, 9), "[2, 4, 9]")]
)
def test_windows_that_do_not_fit_are_refused_in_one_line(
    shape: tuple[int, ...], reported: str
) -> None:
    batch = {"tokens": torch.zeros(shape, dtype=torch.int64)}

    with pytest.raises(ValueError, match="context") as caught:
        byte_gpt.loss(byte_gpt.build(SMALL), batch)

    assert str(caught.value) == (
        f"byte-gpt takes tokens of shape [batch, 1 to 16], got {reported}: "
        "give shorter windows or raise the model's 'context'"
    )
