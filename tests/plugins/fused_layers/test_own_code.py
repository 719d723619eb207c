"""Calls that the ops do not compute run the model's own code."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.models.llama import modeling_llama

from neaptide_plugins.fused_layers import replacing
from neaptide_plugins.fused_layers.config import KINDS
from neaptide_plugins.fused_layers.forwards import layer_forward
from neaptide_plugins.fused_layers.probing import gated_form
from neaptide_plugins.fused_layers.replacing import Replacements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("on_device")


class Normed(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width) + 0.5), 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        rstd = torch.rsqrt(hidden_states.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (hidden_states.float() * rstd).to(hidden_states.dtype)


class NormedNorm(Normed):
    pass


class Gate(nn.Module):
    def __init__(self, act: Any = None) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(16, 24), nn.Linear(16, 24)
        self.down_proj, self.act_fn = nn.Linear(24, 16), act or nn.SiLU()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(hidden_states), self.up_proj(hidden_states)
        return self.down_proj(self.act_fn(gate) * up)


@pytest.fixture
def replace() -> Iterator[Callable[..., nn.Sequential]]:
    """Return a function that replaces layers, all of which can be."""
    made = []

    def replaced(*layers: nn.Module) -> nn.Sequential:
        model = nn.Sequential(*layers).to(DEVICE)
        made.append(Replacements(KINDS, 1))
        made[-1].attach(model)
        assert not made[-1].left
        return model

    yield replaced
    for each in made:
        each.detach()


def own(layer: nn.Module, *given: torch.Tensor) -> torch.Tensor:
    return type(layer).forward(layer, *given)


def numbers(*shape: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=random, device="cpu").to(DEVICE)


@pytest.mark.parametrize(
    "acts",
    [
        (nn.GELU(), nn.GELU("tanh")),
        (functional.silu, functional.relu),
        (partial(functional.gelu, approximate="tanh"), functional.gelu),
    ],
    ids=["modules", "functions", "partial"],
)
def test_activations_are_told_apart(acts: tuple[Any, Any], replace: Any) -> None:
    x = numbers(2, 3, 16) * 3
    for layer in replace(*map(Gate, acts)):
        assert torch.equal(layer(x), own(layer, x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler's own
def test_partial_functions_of_many_layers_are_alike(
    replace: Any, calls: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    monkeypatch.setattr(
        replacing, "gated_form", lambda layer: tried.append(layer) or gated_form(layer)
    )
    layers = [Gate(ACT2FN["gelu_pytorch_tanh"]) for _ in range(3)]
    for layer in layers:
        layer.other = partial(functional.gelu, approximate="tanh")
    model = replace(*layers, Gate(partial(functional.gelu, approximate="tanh")))
    assert tried == [layers[0], model[3]]
    x = numbers(2, 3, 16)
    for layer in model:
        assert torch.equal(layer(x), own(layer, x))
    assert calls == {"gated_unit": 4}
    torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    assert calls["gated_unit"] > 4


def test_arguments_have_names(replace: Any, calls: dict[str, int]) -> None:
    x = numbers(2, 3, 16)
    norm, mlp, torchs, centered = replace(NormedNorm(), Gate(), nn.RMSNorm(16), nn.LayerNorm(16))
    assert torch.equal(norm(hidden_states=x), own(norm, x))
    assert torch.equal(mlp(hidden_states=x), own(mlp, x))
    assert torch.equal(torchs(x=x), own(torchs, x))
    assert torch.allclose(centered(input=x), own(centered, x), atol=1e-6)
    assert calls["rms_norm"] == 2
    assert calls["gated_unit"] == 1
    for wrong in ({"y": x}, {"hidden_states": x, "y": x}, {}):
        with pytest.raises(TypeError):
            norm(**wrong)


def test_changes_in_the_run_take_effect(replace: Any, calls: dict[str, int]) -> None:
    x = numbers(2, 3, 16)
    norm, torchs, mlp, other = replace(NormedNorm(), nn.RMSNorm(16), Gate(), Gate(nn.GELU()))
    norm.eps = torchs.eps = 1.0
    mlp.act_fn, other.act_fn.approximate = nn.ReLU(), "tanh"
    for layer in (norm, torchs, mlp, other):
        assert torch.equal(layer(x), own(layer, x))
    other.act_fn.approximate = "none"
    assert torch.equal(other(x), own(other, x))
    assert calls == {"gated_unit": 1}


def test_hooks_of_the_run_see_the_activation(replace: Any) -> None:
    (mlp,) = replace(Gate())
    mlp.act_fn.register_forward_hook(lambda _, __, y: y * 2)
    x = numbers(2, 3, 16)
    assert torch.equal(mlp(x), own(mlp, x))


def test_what_only_broadcasts_runs(replace: Any, calls: dict[str, int]) -> None:
    (norm,) = replace(NormedNorm(1))
    x = numbers(2, 3, 16)
    assert torch.equal(norm(x), own(norm, x))
    assert not calls
    (norm,) = replace(NormedNorm())
    norm.weight = nn.Parameter(torch.ones(1, device=DEVICE))
    assert torch.equal(norm(x), own(norm, x))
    assert not calls


def test_rotary_embeddings_that_broadcast_run(replace: Any, calls: dict[str, int]) -> None:
    plain = modeling_llama.apply_rotary_pos_emb
    replace(modeling_llama.LlamaRMSNorm(8))
    assert modeling_llama.apply_rotary_pos_emb is not plain
    x, table = numbers(2, 3, 5, 8), numbers(2, 5, 8)
    for q, k, tables, dimension in (
        (x[:1], x, table, 1),
        (x[:, 0], x[:, 1], table, -4),
        (x, x[:, :, :1], table, 1),
        (x, x, table[:1, :1], 1),
        (x.transpose(1, 2), x.transpose(1, 2), table, 2),
    ):
        got = modeling_llama.apply_rotary_pos_emb(q, k, tables, tables, dimension)
        for one, two in zip(got, plain(q, k, tables, tables, dimension), strict=True):
            assert torch.equal(one, two)
    assert calls == {"rope": 4}, "of the last two"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, of jvp
def test_transforms_run_the_own_code(replace: Any, calls: dict[str, int]) -> None:
    x, t = numbers(2, 3, 16), numbers(2, 3, 16) + 1
    for layer in replace(NormedNorm(), Gate(), nn.RMSNorm(16)):
        plain = partial(own, layer)
        for transformed in (
            lambda call: torch.func.jvp(call, (x,), (t,))[1],
            lambda call: torch.func.grad(lambda x: call(x).square().sum())(x),
            lambda call: torch.func.vjp(call, x)[1](t)[0],
            lambda call: torch.func.vmap(call)(x),
            _along(x, t),
        ):
            assert torch.equal(transformed(layer), transformed(plain))
    assert not calls


def _along(x: torch.Tensor, t: torch.Tensor) -> Callable[..., torch.Tensor]:
    def derivative(call: Callable[..., torch.Tensor]) -> torch.Tensor:
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(call(forward_ad.make_dual(x, t))).tangent
        assert found is not None
        return found

    return derivative


def test_a_layer_norm_of_few_elements_is_torchs_own(calls: dict[str, int]) -> None:
    layer, x = nn.LayerNorm(16).to(DEVICE), torch.randn(4, 16)
    assert torch.equal(layer(x), layer_forward(nn.LayerNorm, 65)(layer, x))
    assert not calls
