"""Adapters of `lora` are exported as peft saves them, or merged as peft merges them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_families import FAMILIES, batches, saved
from peft import PeftModel
from safetensors.torch import load_file
from support import DEVICE, same_tensors, tiny_trainer
from trained_models import logits

from neaptide import HybridTrainer

pytestmark = [
    pytest.mark.usefixtures("folder"),
    pytest.mark.filterwarnings(
        "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"  # peft's own
    ),
]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "few": {"targets": ["q_proj"], "r": 2, "alpha": 3},
    "dora": {"dora": True},
    "rslora": {"rslora": True, "r": 4},
}


def train(family: str, settings: dict[str, Any], plugins: Any = None, **options: Any) -> None:
    """Train adapters for a few steps, with so high a rate that they count."""
    saved(family, Path("base"))
    config = {
        "model": {"name": "hf:base", "options": options},
        "run": {"dir": "run"},
        "train": {"steps": 2, "device": str(DEVICE)},
        "optimizer": {"name": "adamw", "lr": 0.05},
        "plugins": {"lora": settings, **(plugins or {})},
    }
    with HybridTrainer.from_config(config) as trainer:
        trainer.fit(batches(family, 2))


def adapted(family: str, folder: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return the base model with an adapter, as peft loads it."""
    cls = getattr(transformers, FAMILIES[family][1])
    base = cls.from_pretrained("base", dtype=dtype)
    return PeftModel.from_pretrained(base, folder).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_the_adapter_is_the_one_that_the_run_saved(neaptide: Any, kind: str) -> None:
    train("llama", KINDS[kind])
    assert 0 == neaptide("export", "run", "--to", "out").code
    theirs, ours = (
        load_file(Path(folder, "adapter_model.safetensors"))
        for folder in ("run/plugins/lora", "out")
    )
    assert same_tensors(theirs, ours)
    assert torch.equal(
        logits(adapted("llama", "run/plugins/lora"), "llama"),
        logits(adapted("llama", "out"), "llama"),
    )
    theirs, ours = (
        Path(folder, "adapter_config.json").read_text() for folder in ("run/plugins/lora", "out")
    )
    assert theirs == ours
    assert "base" == json.loads(ours)["base_model_name_or_path"]
    assert "PeftModel" in Path("out/README.md").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_are_those_of_peft(neaptide: Any, kind: str) -> None:
    train("qwen2", KINDS[kind])
    assert 0 == neaptide("export", "run", "--to", "out").code
    assert 0 == neaptide("export", "run", "--to", "merged", "--merge").code
    expected = adapted("qwen2", "out").merge_and_unload()
    model, told = transformers.Qwen2ForCausalLM.from_pretrained("merged", output_loading_info=True)
    assert not any(told.values())
    assert same_tensors(expected.state_dict(), model.state_dict())
    assert torch.equal(logits(expected, "qwen2"), logits(model.eval(), "qwen2"))
    assert "merged into the weights" in Path("merged/README.md").read_text()


@pytest.mark.parametrize("family", ["mixtral", "vit", "bert", "t5", "phi"])
def test_models_that_are_stored_in_another_form_are_merged(neaptide: Any, family: str) -> None:
    train(family, {})
    assert 0 == neaptide("export", "run", "--to", "out").code
    assert 0 == neaptide("export", "run", "--to", "merged", "--merge").code
    expected = adapted(family, "out").merge_and_unload()
    cls = getattr(transformers, FAMILIES[family][1])
    model, told = cls.from_pretrained("merged", output_loading_info=True)
    assert not any(told.values())
    assert torch.equal(logits(expected, family), logits(model.eval(), family))


def test_bfloat16_weights_are_merged_as_peft_does(neaptide: Any) -> None:
    train("llama", {}, dtype="bfloat16")
    assert 0 == neaptide("export", "run", "--to", "out").code
    assert 0 == neaptide("export", "run", "--to", "merged", "--merge").code
    expected = adapted("llama", "out", torch.bfloat16).merge_and_unload()
    model = transformers.LlamaForCausalLM.from_pretrained("merged").eval()
    assert torch.bfloat16 == model.dtype
    assert same_tensors(expected.state_dict(), model.state_dict())


def test_the_average_of_adapters_is_exported_and_merged(neaptide: Any) -> None:
    train("llama", {}, {"ema": {"decay": 0.5}})
    for to, more in {"out": (), "average": ("--average",)}.items():
        assert 0 == neaptide("export", "run", "--to", to, *more).code
    assert 0 == neaptide("export", "run", "--to", "merged", "--merge", "--average").code
    trained, average = (
        load_file(Path(folder, "adapter_model.safetensors")) for folder in ("out", "average")
    )
    assert trained.keys() == average.keys()
    assert not same_tensors(trained, average)
    expected = adapted("llama", "average").merge_and_unload()
    model = transformers.LlamaForCausalLM.from_pretrained("merged")
    assert same_tensors(expected.state_dict(), model.state_dict())


@pytest.mark.parametrize("base", ["bf16", "int8"])
def test_the_adapter_of_weights_held_in_fewer_bits_is_exported(neaptide: Any, base: str) -> None:
    train("llama", {"base": base})
    assert 0 == neaptide("export", "run", "--to", "out").code
    names = ("run/plugins/lora", "out")
    theirs, ours = (load_file(Path(name, "adapter_model.safetensors")) for name in names)
    assert same_tensors(theirs, ours)
    done = neaptide("export", "run", "--to", "merged", "--merge")
    assert (2, False) == (done.code, Path("merged").exists())
    assert f"weights held as {base} take up no adapter; " in done.err.splitlines()[-1]


def test_a_run_without_adapters_has_none_to_merge(neaptide: Any) -> None:
    trainer, given = tiny_trainer({"run": {"dir": "run"}, "train": {"steps": 1}})
    with trainer:
        trainer.fit(given)
    done = neaptide("export", "run", "--to", "out", "--merge")
    said = "the run has no adapters to merge; it was trained without [plugins.lora] @ --merge"
    assert (2, f"error: {said}\n") == (done.code, done.err)


def test_missing_peft_is_one_line(neaptide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    train("llama", {})
    for name in [*sys.modules]:
        if name.startswith("neaptide_verbs.export."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "peft", None)
    done = neaptide("export", "run", "--to", "out")
    assert (2, False) == (done.code, Path("out").exists())
    assert done.err.splitlines()[-1].endswith('pip install "neaptide[lora]" @ plugins.lora')


def test_adapters_of_another_model_are_refused(neaptide: Any) -> None:
    settings = {"run": {"dir": "run"}, "train": {"steps": 1}, "plugins": {"lora": {}}}
    model = torch.nn.Sequential(torch.nn.Linear(4, 4)).to(DEVICE)
    config = {**settings, "optimizer": {"name": "adamw", "lr": 1e-2}}

    def loss(module: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = module(batch).square().mean()
        return found

    with HybridTrainer(model, loss_fn=loss, config=config) as trainer:
        trainer.fit([torch.ones(2, 4, device=DEVICE)])
    done = neaptide("export", "run", "--to", "out")
    said = "adapters are exported of models 'hf:...' only @ plugins.lora"
    assert (2, f"error: {said}\n") == (done.code, done.err)
