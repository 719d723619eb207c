"""Which weights APOLLO may project: by module and name."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from neaptide_plugins.apollo.config import WHOLE
from neaptide_plugins.apollo.groups import parameter_groups
from neaptide_plugins.builtin_models.byte_gpt import build as build_byte_gpt
from neaptide_plugins.builtin_models.config import ByteGptOptions

pytestmark = pytest.mark.usefixtures("on_device")


def kinds(model: nn.Module, adamw: tuple[str, ...] = WHOLE) -> dict[str, str]:
    names = {param: name for name, param in model.named_parameters()}
    groups = parameter_groups(model, adamw)
    return {names[param]: group["kind"] for group in groups for param in group["params"]}


def test_of_a_gpt_the_matrices_of_blocks_may_be_projected() -> None:
    model = build_byte_gpt(ByteGptOptions(layers=1, width=16, heads=2, context=8))
    found = kinds(model)

    assert {name for name, _ in model.named_parameters()} == set(found)
    assert {"apollo"} == {kind for name, kind in found.items() if name.startswith("blocks.")}
    assert {"adamw"} == {kind for name, kind in found.items() if "embed" in name}


def test_names_and_tied_weights_select_adamw() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(8, 4)
            self.inner = nn.Linear(4, 4)
            self.outer = nn.Linear(4, 8, bias=False)
            self.outer.weight = self.tokens.weight
            self.last = nn.Linear(4, 4)
            self.last.bias.requires_grad_(False)

    assert {
        "inner.weight": "apollo",
        "inner.bias": "apollo",
        "last.weight": "adamw",
        "tokens.weight": "adamw",
    } == kinds(Tied(), ("last.*",))


def test_a_frozen_model_has_no_group() -> None:
    model: Any = nn.Linear(4, 4).requires_grad_(False)
    assert [] == parameter_groups(model, WHOLE)
