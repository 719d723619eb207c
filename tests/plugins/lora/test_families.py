"""Ten families of transformers and ViT by name: streamed as resident, and read back by peft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from huggingface_families import FAMILIES, batches, saved
from peft import PeftModel
from support import DEVICE

from neaptide import HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_plugins.lora.adapters import save_adapter
from neaptide_plugins.lora.held_weights import hold
from neaptide_plugins.lora.targets import all_linear

if TYPE_CHECKING:
    from pathlib import Path

STREAMED = {"layer-streaming": {"resident": 0}}
LORA: dict[str, Any] = {"r": 4, "alpha": 32}


def trained(folder: Path, family: str, plugins: dict[str, Any]) -> tuple[list[float], str, Any]:
    """Train three steps; return the losses, the digest and the model."""
    given = {
        "model": {"name": f"hf:{folder}"},
        "optimizer": {"name": "adamw", "lr": 1e-2},
        "plugins": plugins,
    }
    with HybridTrainer.from_config(configured(given, ())[0]) as trainer:
        losses = [trainer.step(batch).loss for batch in batches(family, 3)]
        return losses, trainer.digest(), trainer.model


def logits(model: Any, family: str) -> torch.Tensor:
    batch = {name: values.to(DEVICE) for name, values in batches(family, 1)[0].items()}
    with torch.no_grad():
        found: torch.Tensor = model.to(DEVICE).eval()(**batch).logits
    return found


def check(family: str, folder: Path, **settings: Any) -> None:
    """Train resident and streamed, save, and let peft read the adapter."""
    base = saved(family, folder)
    lora = {"lora": {**LORA, **settings}}
    losses, digest, model = trained(folder, family, lora)
    assert (losses, digest) == trained(folder, family, {**lora, **STREAMED})[:2]
    expected = logits(model, family)
    save_adapter(model, folder / "adapter")
    assert not torch.equal(expected, logits(base, family))
    fresh = type(base).from_pretrained(folder)
    if "base" in settings:
        hold(fresh, all_linear(fresh), settings["base"])
    assert torch.equal(
        expected, logits(PeftModel.from_pretrained(fresh, folder / "adapter"), family)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_streams_to_the_bit_and_peft_reads_it(family: str, tmp_path: Path) -> None:
    check(family, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_qlora_streams_to_the_bit_and_peft_reads_it(family: str, tmp_path: Path) -> None:
    check(family, tmp_path, base="nf4")


@pytest.mark.parametrize("settings", [{"base": "bf16"}, {"base": "int8", "rslora": True}], ids=str)
def test_other_bases_stream_to_the_bit_and_peft_reads_them(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    check("llama", tmp_path, **settings)


@pytest.mark.parametrize("settings", [{"dora": True}, {"dora": True, "base": "int8"}], ids=str)
def test_dora_streams_to_the_bit_and_peft_reads_it(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    check("llama", tmp_path, **settings)
