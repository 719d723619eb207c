"""Runs that train adapters: what trains, what checkpoints hold, and what a plan predicts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from huggingface_families import batches, saved
from peft import PeftModel
from safetensors import safe_open
from support import DEVICE, plugin_with, same_tensors, stranger, tensors_of
from torch import nn

from neaptide import ConfigError, HybridTrainer, hookimpl
from neaptide.hooks.enabling import configured
from neaptide_plugins.lora.adapters import save_adapter

if TYPE_CHECKING:
    from pathlib import Path


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    ).to(DEVICE)


def data(count: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 8, generator=generator).to(DEVICE) for _ in range(count)]


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(batch) - 1).square().mean()
    return loss


def trainer_of(model: nn.Module, optimizer: Any = None, **config: Any) -> HybridTrainer:
    given = {"optimizer": {"name": "adamw", "lr": 1e-2}, "plugins": {"lora": {}}, **config}
    return HybridTrainer(model, optimizer, loss_fn=loss_fn, config=given)


def test_the_optimizer_has_adapters_alone_and_the_base_stays_bit_for_bit() -> None:
    model = small()
    before = tensors_of(model)
    with trainer_of(model) as trainer:
        losses = [trainer.step(batch).loss for batch in data()]
        given = [one for group in trainer.optimizer.param_groups for one in group["params"]]
    assert losses[-1] < losses[0]
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    assert {id(one) for one in given} == {id(one) for one in named.values()}
    assert all(".lora_A." in name or ".lora_B." in name for name in named)
    after = {name.replace(".base_layer", ""): one for name, one in tensors_of(model).items()}
    assert same_tensors(before, {name: after[name] for name in before})


def test_only_adapters_have_gradients() -> None:
    having: set[str] = set()

    @hookimpl
    def after_backward(self: Any, model: nn.Module) -> None:
        having.update(name for name, one in model.named_parameters() if one.grad is not None)

    watching = stranger(plugin_with(after_backward=after_backward))
    config = {"plugins": {"lora": {"targets": ["2"]}}}
    with HybridTrainer(small(), loss_fn=loss_fn, config=config, plugins=[watching]) as trainer:
        trainer.step(data(1)[0])
    assert having == {"2.lora_A.default.weight", "2.lora_B.default.weight"}


def test_a_new_optimizer_of_the_whole_model_gets_the_adapters() -> None:
    def losses(*, own: bool) -> list[float]:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2) if own else None
        with trainer_of(model, optimizer) as trainer:
            return [trainer.step(batch).loss for batch in data()]

    assert losses(own=True) == losses(own=False)


def groups(model: nn.Module) -> Any:
    return torch.optim.SGD([{"params": [one]} for one in model.parameters()], lr=0.1)


def used(model: nn.Module) -> Any:
    optimizer = torch.optim.Adam(model.parameters())
    loss_fn(model, data(1)[0]).backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("made", "what"), [(groups, "SGD has 6 groups"), (used, "made updates")])
def test_another_optimizer_is_refused_and_the_model_is_as_before(made: Any, what: str) -> None:
    model = small()
    optimizer = made(model)
    before = tensors_of(model)
    with pytest.raises(ConfigError, match=rf"{what} .*leave it out .* @ plugins\.lora$") as caught:
        trainer_of(model, optimizer)
    assert "\n" not in str(caught.value)
    assert same_tensors(before, tensors_of(model))
    assert all(one.requires_grad for one in model.parameters())
    assert {type(one) for one in model} == {nn.Linear, nn.Tanh}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["peft", "bitsandbytes"])
def test_a_library_that_is_missing_is_told_in_a_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    extra = {"peft": "lora", "bitsandbytes": "qlora"}[name]
    message = rf'{name}.*: pip install "neaptide\[{extra}\]" @ plugins\.lora'
    with pytest.raises(ConfigError, match=message) as caught:
        trainer_of(small(), plugins={"lora": {"base": "nf4"}})
    assert "\n" not in str(caught.value)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"r": 0}, r"'r' must be >= 1 \(got 0\) @ plugins\.lora\.r"),
    ({"alpha": 0}, r"'alpha' must be >= 1 .* @ plugins\.lora\.alpha"),
    ({"dropout": 1.0}, r"'dropout' must be < 1\.0 .* @ plugins\.lora\.dropout"),
    ({"targets": []}, r"'targets' must be 'all-linear' or names .* @ plugins\.lora\.targets"),
    ({"targets": "q_proj"}, r"targets"),
    ({"base": "int4"}, r'nf4.*got "int4".* @ plugins\.lora\.base'),
    ({"base": "nf4", "merge": True}, r"'merge' needs base = 'as-is' .* @ plugins\.lora\.merge"),
    ({"targets": ["q_proj"]}, r"no linear layer has the name 'q_proj'; there is 0, 2, 4 @ plugins"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=str)
def test_wrong_settings_are_told_in_a_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        trainer_of(small(), plugins={"lora": settings})
    assert "\n" not in str(caught.value)


def test_int8_of_phases_is_a_conflict() -> None:
    with pytest.raises(ConfigError, match=r"'int8'.*'lora'|'lora'.*'int8'"):
        trainer_of(small(), plugins={"lora": {}, "int8": {}})


def test_adapters_upon_adapters_are_refused() -> None:
    model = small()
    with trainer_of(model) as trainer:
        trainer.step(data(1)[0])
    with pytest.raises(ConfigError, match=r"has adapters of peft already; .* @ plugins\.lora$"):
        trainer_of(model)


@pytest.mark.parametrize("base", ["as-is", "bf16", "int8", "nf4"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_resumed_run_ends_as_an_unbroken_one(
    base: str, *, streamed: bool, tmp_path: Path
) -> None:
    plugins = {"lora": {"base": base, "dropout": 0.2}}
    if streamed:
        plugins["layer-streaming"] = {"resident": 0}

    def trained(first: int, last: int, *, load: bool = False, save: bool = False) -> str:
        with trainer_of(small(), plugins=plugins) as trainer:
            if load:
                trainer.load(tmp_path / "checkpoint")
            for batch in data()[first:last]:
                trainer.step(batch)
            if save:
                trainer.save(tmp_path / "checkpoint")
            return trainer.digest()

    trained(0, 4, save=True)
    assert trained(4, 8, load=True) == trained(0, 8)


def test_adapters_follow_the_seed_of_the_run(tmp_path: Path) -> None:
    saved("llama", tmp_path)

    def digest(seed: int) -> str:
        given = {"seed": seed, "model": {"name": f"hf:{tmp_path}"}, "plugins": {"lora": {}}}
        with HybridTrainer.from_config(configured(given, ())[0]) as trainer:
            return trainer.digest()

    assert digest(3) == digest(3)
    assert digest(3) != digest(4)


def run_of(folder: Path, **settings: Any) -> Any:
    given = {
        "run": {"dir": str(folder / "run"), "checkpoint_every": 2},
        "model": {"name": f"hf:{folder / 'model'}"},
        "optimizer": {"name": "adamw", "lr": 1e-2},
        "train": {"steps": 4},
        "plugins": {"lora": settings},
    }
    return configured(given, ())[0]


def weights_in(checkpoint: Path) -> set[str]:
    with safe_open(checkpoint / "weights.safetensors", "pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("base", ["as-is", "int8"])
def test_a_run_keeps_the_base_once_and_ends_with_an_adapter_for_peft(
    base: str, tmp_path: Path
) -> None:
    given = saved("llama", tmp_path / "model")
    with HybridTrainer.from_config(run_of(tmp_path, base=base)) as trainer:
        trainer.fit(batches("llama", 4))
        model = trainer.model
        adapters = {name for name, one in model.named_parameters() if one.requires_grad}
    checkpoints = tmp_path / "run" / "checkpoints"
    steps = sorted(checkpoints.glob("step-*"))
    assert 2 == len(steps)
    assert all(adapters == weights_in(step) for step in steps)
    (held,) = checkpoints.glob("frozen-*")
    assert weights_in(held) == {name for name, _ in model.named_parameters()} - adapters
    if base == "as-is":
        read = PeftModel.from_pretrained(given, tmp_path / "run" / "plugins" / "lora").eval()
        batch = batches("llama", 1)[0]
        assert torch.equal(read(**batch).logits, model.cpu().eval()(**batch).logits)


def test_a_merged_run_ends_with_a_plain_model_of_the_same_outputs(tmp_path: Path) -> None:
    model, x = small(), data(1)[0]
    with trainer_of(model, plugins={"lora": {"merge": True}}) as trainer:
        for batch in data():
            trainer.step(batch)
        save_adapter(model, tmp_path)
        expected = model(x)
    assert {type(one) for one in model} == {nn.Linear, nn.Tanh}  # type: ignore[arg-type]
    torch.testing.assert_close(model(x), expected)
    read = PeftModel.from_pretrained(small(), tmp_path)
    torch.testing.assert_close(read(x), expected)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["r"] == 8
