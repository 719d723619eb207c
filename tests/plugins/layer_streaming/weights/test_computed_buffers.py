"""A model on the meta device gets its non-persistent buffers from its own initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from support import DEVICE
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from neaptide import ConfigError, HybridTrainer
from neaptide_plugins.layer_streaming.weights.computed_buffers import computed_buffers

if TYPE_CHECKING:
    from pathlib import Path


def llama(*, tied: bool) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config)


def losses(model: nn.Module, batches: list[Any], loss_fn: Any = None, **settings: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    config = {"plugins": {"layer-streaming": settings}}
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        return [trainer.step(batch).loss for batch in batches]


def tokens() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(0, 64, (2, 8), generator=generator).to(DEVICE) for _ in range(3)]
    return [{"input_ids": each, "labels": each} for each in drawn]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_a_llama_on_meta_trains_as_the_one_it_was_saved_from(
    tmp_path: Path, *, tied: bool, old: bool
) -> None:
    torch.manual_seed(0)
    whole = llama(tied=tied)
    whole.save_pretrained(tmp_path)
    if old:  # earlier versions of transformers saved the buffer in each layer
        path = tmp_path / "model.safetensors"
        name = "model.layers.0.self_attn.rotary_emb.inv_freq"
        save_file({**load_file(path), name: torch.zeros(4)}, path, {"format": "pt"})
    with torch.device("meta"):
        empty = llama(tied=tied)
    expected = losses(whole.to(DEVICE), tokens())
    assert losses(empty, tokens(), weights=str(tmp_path)) == expected
    assert not any(buffer.is_meta for buffer in empty.buffers())


class Scaled(nn.Module):
    """A block with weights and a buffer that `reset_parameters` computes."""

    def __init__(self, make: str) -> None:
        super().__init__()
        self.make, self.calls = make, 0
        self.weight = nn.Parameter(torch.empty(8))
        self.register_buffer("scale", torch.empty(8), persistent=False)
        self.register_buffer("steps", torch.empty(2, dtype=torch.int64), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.calls += 1
        nn.init.normal_(self.weight)
        with torch.no_grad():
            self.steps.fill_(3)
            if self.make == "random":
                self.scale.normal_()
            elif self.make == "part":
                self.scale[1:] = 2.0
            elif self.make == "replaced":
                self.scale = torch.linspace(1.0, 2.0, 8)
            else:
                self.scale.copy_(torch.linspace(1.0, 2.0, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.scale + self.steps.sum()


def net(make: str) -> nn.Module:
    return nn.Sequential(nn.Sequential(*(Scaled(make) for _ in range(3))), nn.Linear(8, 1))


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize("make", ["filled", "replaced"])
def test_a_buffer_is_computed_once_and_weights_are_those_of_the_file(
    tmp_path: Path, make: str
) -> None:
    torch.manual_seed(0)
    whole = net(make)
    save_model(whole, str(tmp_path / "weights.safetensors"))
    with torch.device("meta"):
        empty = net(make)
    batches = [torch.ones(4, 8, device=DEVICE) for _ in range(3)]
    state = torch.get_rng_state()
    found = losses(empty, batches, loss_fn, blocks="0", weights=str(tmp_path))
    assert torch.equal(state, torch.get_rng_state())
    assert [block.calls for block in empty[0]] == [1, 1, 1]
    assert found == losses(whole.to(DEVICE), batches, loss_fn, blocks="0")


@pytest.mark.parametrize("make", ["random", "part"])
def test_a_buffer_that_has_no_sure_values_is_refused(tmp_path: Path, make: str) -> None:
    save_model(net(make), str(tmp_path / "weights.safetensors"))
    with torch.device("meta"):
        empty = net(make)
    names = {buffer: name for name, buffer in empty.named_buffers()}
    computed = {names[buffer] for buffer in computed_buffers(empty)}
    assert computed == {name for name in names.values() if name.endswith("steps")}
    with pytest.raises(ConfigError, match=r"'0\.0\.scale' has no values .* build it on the CPU"):
        losses(empty, [], loss_fn, blocks="0", weights=str(tmp_path))
    assert all(tensor.is_meta for tensor in (*empty.parameters(), *empty.buffers()))
