"""Layers that compute something else for some numbers, in some mode, or in their gradients."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4MLP

from neaptide_plugins.fused_layers.config import KINDS
from neaptide_plugins.fused_layers.replacing import Replacements
from neaptide_plugins.fused_layers.rotary import rope_form


class PlainNorm(nn.Module):
    def __init__(self, width: int = 16, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width) + 0.5), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * rstd).to(x.dtype)


class TenTimesSteeper(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * 10


class Plain(nn.Module):
    def __init__(self, act: Any = None) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(16, 24), nn.Linear(16, 24)
        self.down_proj, self.act_fn = nn.Linear(24, 16), act or nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def _normed(x: torch.Tensor, variance: torch.Tensor, self: Any) -> torch.Tensor:
    return self.weight * (x.float() * torch.rsqrt(variance)).to(x.dtype)


def _variance(x: torch.Tensor) -> torch.Tensor:
    return x.float().pow(2).mean(-1, keepdim=True)


def _in_half(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = PlainNorm.forward(self, x)
    return y.clamp(-2, 2) if x.dtype == torch.float16 else y


def _of_five_tokens(self: Any, x: torch.Tensor) -> torch.Tensor:
    return PlainNorm.forward(self, x) / (2 if x.shape[-2] == 5 else 1)


NORMS = {
    "largest variance": lambda self, x: _normed(x, _variance(x).clamp(max=100.0) + self.eps, self),
    "least variance": lambda self, x: _normed(x, _variance(x).clamp(min=self.eps), self),
    "another eps": lambda self, x: _normed(x, _variance(x) + 1e-12, self),
    "clamped": lambda self, x: PlainNorm.forward(self, x.clamp(-50, 50)),
    "clamped after": lambda self, x: (
        self.weight * (x.float() * torch.rsqrt(_variance(x) + self.eps)).clamp(-3, 3).to(x.dtype)
    ),
    "nan": lambda self, x: PlainNorm.forward(self, torch.nan_to_num(x)),
    "float16": _in_half,
    "five tokens": _of_five_tokens,
    "many tokens": lambda self, x: PlainNorm.forward(self, x) / (2 if x.shape[-2] > 64 else 1),
    "vectors of a batch": lambda self, x: PlainNorm.forward(self, x) / (2 if x.dim() == 2 else 1),
    "detached scale": lambda self, x: _normed(x, _variance(x).detach() + self.eps, self),
    "detached weight": lambda self, x: PlainNorm.forward(self, x).detach() + 0 * x.nan_to_num(0, 0),
    "own gradient": lambda self, x: PlainNorm.forward(self, TenTimesSteeper.apply(x)),
    "no gradient": torch.no_grad()(PlainNorm.forward),
}


def _left(*layers: nn.Module) -> dict[str, int]:
    replacements = Replacements(KINDS, 1)
    replacements.attach(nn.Sequential(*layers))
    replacements.detach()
    assert not any("forward" in vars(layer) for layer in layers)
    return dict(replacements.left)


def test_the_plain_layers_are_replaced() -> None:
    assert {} == _left(PlainNorm(), Plain(), PlainNorm(width=1), PlainNorm(eps=1e-12))


@pytest.mark.parametrize("name", NORMS)
def test_norms_that_differ_are_left(name: str) -> None:
    other = type("OtherNorm", (PlainNorm,), {"forward": NORMS[name]})
    assert {"OtherNorm": 1} == _left(other(eps=1e-8 if name == "another eps" else 1e-6))


def _limited(self: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = self.gate_proj(x).clamp(max=10.0), self.up_proj(x).clamp(-10.0, 10.0)
    return self.down_proj(self.act_fn(gate) * up)


def _by_weight(self: Any, x: torch.Tensor) -> torch.Tensor:
    gate = functional.linear(x, self.gate_proj.weight, self.gate_proj.bias)
    return self.down_proj(self.act_fn(gate) * self.up_proj(x))


MLPS = {
    "limited": _limited,
    "many tokens": lambda self, x: Plain.forward(self, x * (2 if x.shape[-2] > 64 else 1)),
    "by weight": _by_weight,
    "detached": lambda self, x: self.down_proj(
        self.act_fn(self.gate_proj(x).detach()) * self.up_proj(x)
    ),
    "own gradient": lambda self, x: TenTimesSteeper.apply(Plain.forward(self, x)),
    "nan": lambda self, x: Plain.forward(self, x.nan_to_num()),
}


@pytest.mark.parametrize("name", MLPS)
def test_gated_mlps_that_differ_are_left(name: str) -> None:
    other = type("Other", (Plain,), {"forward": MLPS[name]})
    assert {"Other": 1} == _left(other())


def test_a_clamped_mlp_of_transformers_is_left() -> None:
    config = DeepseekV4Config(hidden_size=16, intermediate_size=24, moe_intermediate_size=24)
    assert _left(DeepseekV4MLP(config))["DeepseekV4MLP"] == 1


def test_layers_with_tensors_beside_their_parameters_are_left() -> None:
    norm, mlp = PlainNorm(), Plain()
    norm.scale = torch.tensor(1.0)
    mlp.register_buffer("scale", torch.tensor(1.0))
    assert {"PlainNorm": 1, "Plain": 1} == _left(norm, mlp)


class Noisy(nn.Module):
    """An activation that only training changes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(x) * (2 if self.training else 1)


def test_an_activation_is_tried_in_both_modes() -> None:
    mlp = Plain(Noisy().eval()).eval()
    assert {"Plain": 1} == _left(mlp)
    assert not mlp.act_fn.training


def test_hooks_of_an_activation_are_not_called_with_other_numbers() -> None:
    seen = []
    mlp = Plain()
    mlp.act_fn.register_forward_hook(lambda *given: seen.append(given))
    assert {"Plain": 1} == _left(mlp)
    handle = nn.modules.module.register_module_forward_hook(lambda *given: seen.append(given))
    assert {"Plain": 1} == _left(Plain())
    handle.remove()
    assert not seen


def test_trying_leaves_gradients_modes_and_parameters() -> None:
    layers = nn.Sequential(PlainNorm(), Plain(), nn.RMSNorm(16))
    before = {name: value.clone() for name, value in layers.state_dict().items()}
    layers.requires_grad_(requires_grad=False)
    with torch.inference_mode():
        assert {} == _left(*layers)
    assert all(p.grad is None and not p.requires_grad for p in layers.parameters())
    assert all(module.training for module in layers.modules())
    assert all(torch.equal(value, before[name]) for name, value in layers.state_dict().items())


def _halves(x: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat((-two, one), -1)


def _rotated(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(x * cos + _halves(x) * sin for x in (q, k))


ROPES = {
    "long": lambda q, k, cos, sin: _rotated(q, k, cos / (2 if q.shape[2] > 64 else 1), sin),
    "batch": lambda q, k, cos, sin: _rotated(q, k, cos[:1], sin[:1]),
    "detached": lambda q, k, cos, sin: _rotated(q, k.detach(), cos, sin),
    "clamped": lambda q, k, cos, sin: _rotated(q.clamp(-50, 50), k, cos, sin),
    "float16": lambda q, k, cos, sin: _rotated(
        q * (2 if q.dtype == torch.float16 else 1), k, cos, sin
    ),
}


def test_the_plain_function_is_replaced() -> None:
    assert rope_form(_rotated) is False, "whole vectors only"


@pytest.mark.parametrize("name", ROPES)
def test_rotary_embeddings_that_differ_are_left(name: str) -> None:
    home = ModuleType("home_of_rope")

    def apply_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        if unsqueeze_dim != 1:
            return _rotated(q, k, cos, sin, unsqueeze_dim)
        return ROPES[name](q, k, cos, sin)

    home.apply_rotary_pos_emb = apply_rotary_pos_emb  # type: ignore[attr-defined]  # a module's
    kind = type("Attention", (nn.Identity,), {"__module__": home.__name__})
    sys.modules[home.__name__] = home
    try:
        assert {"home_of_rope.apply_rotary_pos_emb": 1} == _left(kind())
    finally:
        del sys.modules[home.__name__]
    assert home.apply_rotary_pos_emb is apply_rotary_pos_emb
