"""Models that do not keep packed documents apart are refused; others are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
import transformers
from chats_and_texts import write_texts
from huggingface_families import FAMILIES

from neaptide import ConfigError, HybridTrainer
from neaptide.run.assembly import build_data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SMALL = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LEAKING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "its mask is its own": (
        "OPTConfig",
        "OPTForCausalLM",
        {**_SMALL, "word_embed_proj_dim": 32, "ffn_dim": 48},
    ),
    "it knows no positions": ("BloomConfig", "BloomForCausalLM", _SMALL),
    "it looks both ways": ("BertConfig", "BertForMaskedLM", {**_SMALL, "intermediate_size": 48}),
    "it is recurrent": ("MambaConfig", "MambaForCausalLM", {**_SMALL, "state_size": 4}),
    "it convolves": (
        "Lfm2Config",
        "Lfm2ForCausalLM",
        {
            **_SMALL,
            "intermediate_size": 48,
            "num_key_value_heads": 2,
            "layer_types": ["conv", "full_attention"],
        },
    ),
}
APART: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{
        name: FAMILIES[name]
        for name in (
            "llama",
            "qwen2",
            "mistral",
            "gemma",
            "phi",
            "gpt-neox",
            "olmo",
            "mixtral",
        )
    },
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "falcon": ("FalconConfig", "FalconForCausalLM", _SMALL),
}


def built(made: tuple[str, str, dict[str, Any]], settings: Any, folder: Path, **more: Any) -> Any:
    config_class, model_class, options = made
    torch.manual_seed(0)
    tokens = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0}
    config = getattr(transformers, config_class)(**{**options, **tokens})
    getattr(transformers, model_class)(config).save_pretrained(folder / "model")
    config = settings(f"jsonl:{write_texts(folder / 'texts.jsonl', 30)}", **more)
    config = attrs.evolve(config, model=attrs.evolve(config.model, name=f"hf:{folder}/model"))
    with HybridTrainer.from_config(config) as trainer:
        before = trainer.digest()
        data = build_data(config, trainer.hooks)
        assert trainer.digest() == before
        assert not trainer.model._forward_hooks
        trainer.step(next(iter(data.train)))
    return data


@pytest.mark.parametrize("why", LEAKING)
def test_a_model_whose_documents_see_each_other_is_refused(
    why: str, settings: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"does not keep the documents .* pack = false @ data"):
        built(LEAKING[why], settings, tmp_path)
    assert not (tmp_path / "cache").exists()
    if why != "it looks both ways":
        assert built(LEAKING[why], settings, tmp_path, pack=False)


@pytest.mark.parametrize("family", APART)
@pytest.mark.parametrize("plugins", [{}, {"layer-streaming": {"resident": 0}}])
def test_a_model_that_keeps_them_apart_is_not(
    family: str, plugins: Any, settings: Callable[..., Any], tmp_path: Path
) -> None:
    assert built(APART[family], settings, tmp_path, plugins=plugins)
