"""Gradients through many kinds of layers, blocks and nets are within five percent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import awkward_nets
import pytest
import torch
from compressed import differentiated, error, saving
from support import DEVICE
from zoo_blocks import BLOCKS
from zoo_layers import LAYERS, Residual, Stack
from zoo_nets import NETS

from neaptide_toolkit.testing.parting import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

pytestmark = pytest.mark.usefixtures("on_device")

OTHERWISE = {
    "python's rng": "draws other numbers each time",
    "torch.func": "torch refuses saved-tensor hooks there",
    "reentrant checkpoint": "knows no gradients but those of a whole backward",
}


def layered(name: str) -> Callable[[], nn.Module]:
    make, call = LAYERS[name]
    return lambda: Stack(lambda: Residual(make(), call))


SUBJECTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{f"layer: {name}": (layered(name), (6, 5, 8)) for name in LAYERS},
    **{f"block: {name}": (make, (6, 5, 8)) for name, make in BLOCKS.items()},
    **{f"net: {name}": (make, (6, 5, 8)) for name, make in NETS.items()},
    **{f"awkward: {name}": (make, (6, 8)) for name, make in awkward_nets.TRAINABLE.items()},
}
KNOWN = [name for name in SUBJECTS if name.partition(": ")[2] not in OTHERWISE]
FEW = KNOWN[::9]
BOUND = 0.05
NOT_UNDER_AUTOCAST = {"layer: bilinear"}


def check(name: str, dtype: torch.dtype, group: int) -> None:
    make, size = SUBJECTS[name]
    x = torch.randn(*size, generator=torch.Generator(DEVICE).manual_seed(1))
    results = []
    for session in (None, saving(group=group)):
        torch.manual_seed(0)
        model = make().train()
        parameters = [each for each in model.parameters() if each.requires_grad]

        def call(model: nn.Module = model) -> torch.Tensor:
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=dtype is torch.bfloat16):
                return model(x).float()

        results.append(differentiated(call, parameters, session))
    exact, compressed = results
    assert same_bits(exact.loss, compressed.loss)
    assert error(exact, compressed) < BOUND


@pytest.mark.parametrize("name", FEW)
def test_some_kinds_of_nets(name: str) -> None:
    check(name, torch.float32, 16)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("group", [16, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KNOWN)
def test_all_kinds_of_nets(name: str, dtype: torch.dtype, group: int) -> None:
    if dtype is torch.float32 or name not in NOT_UNDER_AUTOCAST:
        check(name, dtype, group)
