"""Loss, gradients, buffers and random state are to the bit those without checkpointing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from awkward_nets import (
    NETS,
    WIDTH,
    Cells,
    InPlace,
    Lowered,
    Mlp,
    Nested,
    Noisy,
    Normed,
    Partial,
    Stack,
)
from checkpointed import attached, differing, trace
from hypothesis import given, settings
from hypothesis import strategies as st
from support import CYCLE, DEVICE, random_state, same_tensors, tensors_of, tiny_trainer
from torch import nn

from neaptide_toolkit.recompute import ChangedInPlaceError
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from neaptide_plugins.activation_checkpointing.segments import Segments


def loss_of(model: nn.Module, step: int, *, autocast: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
        return model(torch.randn(6, WIDTH, generator=generator).to(next(model.parameters())))


SETTINGS: dict[str, dict[str, Any]] = {
    "each block": {"interval": 1},
    "pairs": {"interval": 2},
    "all blocks": {"interval": 8},
    "half of them": {"interval": 1, "ratio": 0.5},
}
KEPT = {"matmuls kept": {"interval": 2, "save_ops": ("matmul", "aten.convolution")}}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_training_is_bitwise_the_same(name: str, *, autocast: bool) -> None:
    step = partial(loss_of, autocast=autocast)
    expected = trace(NETS[name], step)
    # torch's cells change the products in place where nobody can see it, which is refused below.
    chosen = SETTINGS if name == "recurrent" else SETTINGS | KEPT
    found = {
        setting: differing(expected, trace(NETS[name], step, segments=partial(attached, **given)))
        for setting, given in chosen.items()
    }
    assert {setting: [] for setting in chosen} == found


def test_products_that_are_changed_unseen_are_not_kept() -> None:
    model = Cells()  # on a GPU they are one fused product, which changes nothing
    attached(model, device=torch.device("cpu"), save_ops=("matmul",))
    with pytest.raises(ChangedInPlaceError, match=r"unsafe_split.*; exclude the block") as caught:
        loss_of(model, 0)
    assert 1 == len(str(caught.value).splitlines())


def test_a_block_of_which_nothing_is_kept_may_change_what_it_likes() -> None:
    patch = partial(attached, save_ops=("attention",))
    assert [] == differing(trace(Cells, loss_of), trace(Cells, loss_of, segments=patch))


class Rectified(Mlp):
    """Changes a product in place, where it can be seen."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu_()


def test_a_product_that_is_changed_after_it_was_kept_is_named() -> None:
    model = Stack([Rectified() for _ in range(2)])
    attached(model, save_ops=("matmul",))
    with pytest.raises(ChangedInPlaceError) as caught:
        loss_of(model, 0).backward()
    expected = (
        "activation checkpointing of block 'blocks.0': an output of aten.addmm.default, one of "
        "save_ops, was changed in place; exclude the block"
    )
    assert expected == str(caught.value)


def test_a_mistake_would_be_seen() -> None:
    expected = trace(NETS["dropout"], loss_of)
    found = trace(NETS["dropout"], lambda model, step: loss_of(model, step) * (1 + 1e-6))
    assert "0 loss" in differing(expected, found)


KINDS = (Mlp, Normed, InPlace, Nested, Noisy, Lowered, Partial)


@settings(max_examples=40)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=7),
    interval=st.integers(1, 8),
    ratio=st.floats(0.05, 1.0),
    save_ops=st.sampled_from([(), ("matmul",), ("matmul", "aten.native_dropout")]),
    autocast=st.booleans(),
)
def test_any_stack_of_awkward_blocks_is_bitwise_the_same(
    kinds: list[type[nn.Module]],
    interval: int,
    ratio: float,
    save_ops: tuple[str, ...],
    *,
    autocast: bool,
) -> None:
    def make() -> nn.Module:
        return Stack([kind() for kind in kinds])

    def patch(model: nn.Module) -> Segments:
        return attached(model, "blocks.*", interval=interval, ratio=ratio, save_ops=save_ops)

    step = partial(loss_of, autocast=autocast)
    expected = trace(make, step, steps=2)
    assert [] == differing(expected, trace(make, step, segments=patch, steps=2))


@pytest.mark.parametrize("interval", [1, 3, 8])
def test_a_run_through_all_phases_is_bitwise_the_same(interval: int) -> None:
    def weights(plugins: dict[str, Any]) -> dict[str, torch.Tensor]:
        trainer, batches = tiny_trainer(
            {"phases": CYCLE, "plugins": plugins}, plugins=[STEADY_PREDICTOR]
        )
        with trainer:
            losses = [trainer.step(batch).loss for batch in batches[:14]]
        random = random_state()
        return {**tensors_of(trainer.model), "losses": torch.tensor(losses), "random": random}

    assert same_tensors(weights({}), weights({"activation-checkpointing": {"interval": interval}}))
