"""The mechanism alone: which layers get adapters, and what peft reads back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import PeftModel
from support import same_tensors, tensors_of
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from neaptide_plugins.lora.adapters import add_adapters, save_adapter
from neaptide_plugins.lora.config import LoraSettings
from neaptide_plugins.lora.targets import chosen

if TYPE_CHECKING:
    from pathlib import Path


class Net(nn.Module):
    """Linear layers of every kind of place, and layers that are none."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(16, 32), "down": nn.Linear(32, 16)}) for _ in range(2)
        )
        self.head = nn.Linear(16, 11)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embed(tokens)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            x = x + layer["down"](torch.relu(layer["up"](x)))
        return self.head(x)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def tokens() -> torch.Tensor:
    return torch.arange(24).view(3, 8) % 11


def trained(model: nn.Module) -> None:
    """Give every adapter other values, as training does."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


EVERY = ["layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down", "head"]


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        ("all-linear", EVERY),
        (("up",), ["layers.0.up", "layers.1.up"]),
        (("0.up", "head"), ["layers.0.up", "head"]),
        (("layers.1.down",), ["layers.1.down"]),
    ],
)
def test_targets_are_names_and_ends_of_names(targets: Any, found: list[str]) -> None:
    assert found == chosen(net(), targets)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("q_proj", r"no linear layer has the name 'q_proj'; there is up, down, head$"),
        ("dwn", r"'dwn' \(did you mean 'down'\?\); there is up, down, head$"),
        (
            "embed",
            r"'embed' \(a module of class Embedding\) is no linear layer that the model",
        ),
        (
            "out_proj",
            r"'out_proj' \(a module of class NonDynamicallyQuantizableLinear\) is no linear",
        ),
        ("p", r"no linear layer has the name 'p'"),
    ],
)
def test_a_target_that_matches_nothing_names_what_there_is(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        chosen(net(), (target, "head"))
    assert "\n" not in str(caught.value)


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="Sequential has no linear layers"):
        add_adapters(nn.Sequential(nn.Conv1d(2, 2, 1)), LoraSettings())


def test_new_adapters_change_nothing_and_follow_the_seed() -> None:
    model, plain = net(), net()
    added = add_adapters(model, LoraSettings(r=3))
    torch.testing.assert_close(plain(tokens()), model(tokens()))
    other = net()
    assert same_tensors(tensors_of(model), tensors_of(add_adapters(other, LoraSettings(r=3)).model))
    assert sum(one.numel() for one in added.parameters) == 3 * (2 * 2 * (16 + 32) + 16 + 11)


def test_only_adapters_have_gradients() -> None:
    model = net()
    add_adapters(model, LoraSettings(targets=("up",)))
    trained(model)
    model(tokens()).sum().backward()
    having = {name for name, one in model.named_parameters() if one.grad is not None}
    assert having == {
        f"layers.{place}.up.lora_{half}.default.weight" for place in range(2) for half in "AB"
    }


SETTINGS: list[dict[str, Any]] = [
    {},
    {"targets": ("up", "head"), "alpha": 5},
    {"dora": True},
    {"rslora": True, "r": 4},
    {"dropout": 0.3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_peft_reads_the_adapter_of_any_module_back(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    model = net()
    add_adapters(model, LoraSettings(**settings))
    trained(model)
    save_adapter(model.eval(), tmp_path / "adapter")
    read = PeftModel.from_pretrained(net(), tmp_path / "adapter").eval()
    expected = read(tokens())
    assert torch.equal(expected, model(tokens()))
    assert not torch.equal(expected, net()(tokens()))


def test_peft_reads_the_adapter_of_transposed_layers_back(tmp_path: Path) -> None:
    def gpt2() -> Any:
        torch.manual_seed(0)
        sizes = {"vocab_size": 11, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
        config = GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
        return GPT2LMHeadModel(config).eval()

    model = gpt2()
    add_adapters(model, LoraSettings())
    trained(model)
    save_adapter(model, tmp_path)
    assert not isinstance(model.lm_head, type(model.transformer.h[0].mlp.c_fc))
    read = PeftModel.from_pretrained(gpt2(), tmp_path).eval()
    assert torch.equal(read(tokens()).logits, model(tokens()).logits)


def test_a_layer_of_several_names_has_no_adapter() -> None:
    model = net()
    model.layers[1].up = model.layers[0].up  # type: ignore[union-attr]
    assert chosen(model, "all-linear") == ["layers.0.down", "layers.1.down", "head"]
    with pytest.raises(ValueError, match=r"'up' .* under this name alone; there is down, head"):
        chosen(model, ("up",))


def test_an_adapter_is_not_merged_into_a_weight_of_several_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight = model[1].weight
    with pytest.raises(ValueError, match=r"'merge' would also change .* weight of '0'"):
        add_adapters(model, LoraSettings(merge=True))
    assert len(add_adapters(model, LoraSettings()).parameters) == 4


def test_there_is_no_adapter_to_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Net has no adapter"):
        save_adapter(net(), tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_adapters_upon_adapters_are_refused() -> None:
    model = net()
    add_adapters(model, LoraSettings())
    before = tensors_of(model)
    with pytest.raises(ValueError, match=r"has adapters of peft already; .*merge_and_unload"):
        add_adapters(model, LoraSettings())
    assert same_tensors(before, tensors_of(model))


@pytest.mark.parametrize("merge", [False, True])
def test_adapters_can_be_removed(*, merge: bool) -> None:
    model = net()
    model.embed.weight.requires_grad_(False)
    before, frozen = tensors_of(model), {n: p.requires_grad for n, p in model.named_parameters()}
    added = add_adapters(model, LoraSettings())
    trained(model)
    expected = model(tokens())
    added.remove(merge=merge)
    assert frozen == {name: one.requires_grad for name, one in model.named_parameters()}
    assert not hasattr(model, "peft_config")
    assert same_tensors(before, tensors_of(model)) is not merge
    if merge:
        torch.testing.assert_close(model(tokens()), expected)


def test_an_evaluation_of_torchs_encoder_has_the_adapters(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    added = add_adapters(model, LoraSettings())
    trained(model)
    x, padding = torch.randn(3, 4, 16), torch.zeros(3, 4, dtype=torch.bool)
    expected = model(x, src_key_padding_mask=padding)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x, src_key_padding_mask=padding), expected)
    added.remove(merge=False)
    assert model.use_nested_tensor
    assert model.layers[0].activation_relu_or_gelu == 1
