"""Which weights are Muon's: by module, shape and name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neaptide_plugins.builtin_models.byte_gpt import build as build_byte_gpt
from neaptide_plugins.builtin_models.config import ByteGptOptions
from neaptide_plugins.muon.config import FUSED, NOT_HIDDEN
from neaptide_plugins.muon.groups import parameter_groups

pytestmark = pytest.mark.usefixtures("on_device")


def names_by_group(model: nn.Module, **changed: Any) -> dict[tuple[str, tuple[int, ...]], set[str]]:
    settings: dict[str, Any] = {"adamw": NOT_HIDDEN, "split": FUSED} | changed
    names = {param: name for name, param in model.named_parameters()}
    groups = parameter_groups(model, **settings)
    return {
        (group["kind"], group["split"]): {names[param] for param in group["params"]}
        for group in groups
    }


def test_of_a_gpt_the_projections_of_blocks_are_muons() -> None:
    model = build_byte_gpt(ByteGptOptions(layers=1, width=16, heads=2, context=8))
    found = names_by_group(model)

    assert [("muon", (1, 1, 1)), ("muon", (1,)), ("adamw", (1,))] == list(found)
    assert {"blocks.0.attention.qkv.weight"} == found["muon", (1, 1, 1)]
    others = {"blocks.0.attention.out.weight", "blocks.0.up.weight", "blocks.0.down.weight"}
    assert others == found["muon", (1,)]
    assert {name for name, _ in model.named_parameters()} == set().union(*found.values())


def test_of_torchs_attention_the_projection_in_is_three() -> None:
    found = names_by_group(nn.TransformerDecoderLayer(16, 2, dim_feedforward=24))

    in_projections = {"self_attn.in_proj_weight", "multihead_attn.in_proj_weight"}
    assert in_projections == found["muon", (1, 1, 1)]
    out_projections = {"self_attn.out_proj.weight", "multihead_attn.out_proj.weight"}
    assert {"linear1.weight", "linear2.weight"} | out_projections == found["muon", (1,)]


def test_convolutions_are_matrices_unless_grouped_or_not_wanted() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=8), nn.Conv1d(8, 4, 1)
    )

    assert {"0.weight", "3.weight"} == names_by_group(model)["muon", (1,)]
    assert [("adamw", (1,))] == list(names_by_group(model, convolutions=False))


class Odd(nn.Module):
    """Everything a list of names and shapes could trip over."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(8, 4)
        self.out = nn.Linear(4, 8, bias=False)
        self.out.weight = self.tokens.weight  # tied: an embedding by one of its modules
        self.hidden = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4, bias=False)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.head.weight  # tied: a head by one of its names
        self.experts = nn.Parameter(torch.zeros(2, 4, 4))
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.number = nn.Parameter(torch.zeros(()))
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)


def test_ties_experts_and_frozen_weights() -> None:
    found = names_by_group(Odd())

    assert {"hidden.weight"} == found["muon", (1,)]
    rest = {"tokens.weight", "hidden.bias", "head.weight", "experts", "empty", "number"}
    assert rest == found["adamw", (1,)]


def test_a_stack_is_muons_where_it_is_said_to_be_one() -> None:
    options: dict[str, Any] = {"adamw": (), "stacked": ["exp*"], "split": {"experts": (1, 1)}}
    stacks = [group for group in parameter_groups(Odd(), **options) if group["stacked"]]

    assert [("muon", (1, 1))] == [(group["kind"], group["split"]) for group in stacks]
    assert [[(2, 4, 4)]] == [[tuple(param.shape) for param in group["params"]] for group in stacks]
    with pytest.raises(ValueError, match=r"'experts' of shape \[2, 4, 4\].* 4 rows do not divide"):
        parameter_groups(Odd(), **options | {"split": {"experts": (2, 1)}})


@pytest.mark.parametrize(
    ("patterns", "muons"),
    [((), {"0.weight", "1.weight"}), (("1.*",), {"0.weight"}), (("*",), set())],
)
def test_names_given_are_adamws(patterns: tuple[str, ...], muons: set[str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    assert muons == names_by_group(model, adamw=patterns).get(("muon", (1,)), set())


def test_the_first_pattern_that_fits_says_the_proportions() -> None:
    model = nn.ModuleDict({"qkv": nn.Linear(4, 24, bias=False)})

    assert [("muon", (4, 1, 1))] == list(
        names_by_group(model, split={"qkv.*": (4, 1, 1), "*qkv*": (1, 1, 1)})
    )
    assert [("muon", (1,))] == list(names_by_group(model, split={}))
    with pytest.raises(ValueError, match=r"'qkv.weight' of shape \[24, 4\] cannot be split: 24 ro"):
        names_by_group(model, split={"*qkv*": (4, 1, 2)})
