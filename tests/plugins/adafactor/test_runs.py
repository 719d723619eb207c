"""Adafactor in runs: named, refused, resumed, streamed, accounted for, beside other plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, same_tensors, tensors_of

from neaptide import ConfigError, HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_plugins.adafactor.optimizer import Adafactor
from neaptide_toolkit.testing.hostile_store import HOSTILE_STORE
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss, tiny_task

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 14


def config(**sections: Any) -> dict[str, Any]:
    optimizer = {"name": "adafactor", "lr": 0.05, "options": {"weight_decay": 0.1}}
    return {"optimizer": optimizer, "phases": CYCLE, "train": {"steps": STEPS}} | sections


def trainer_of(
    settings: dict[str, Any], *plugins: Any, dtype: torch.dtype = torch.float32
) -> tuple[HybridTrainer, list[Any]]:
    """Return a trainer of the tiny task whose optimizer the config names, and its batches."""
    task = tiny_task(steps=STEPS)
    trainer = HybridTrainer(
        task.model.to(dtype),
        loss_fn=tiny_loss,
        config=settings,
        plugins=[STEADY_PREDICTOR, *plugins],
    )
    batches = [{**batch, "x": batch["x"].to(dtype)} for batch in task.batches]
    return trainer, batches


def trained(
    settings: dict[str, Any], *plugins: Any, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    trainer, batches = trainer_of(settings, *plugins, dtype=dtype)
    with trainer:
        for batch in batches:
            trainer.step(batch)
    return tensors_of(trainer.model)


def test_naming_it_enables_it_with_its_options() -> None:
    options = {"weight_decay": 0.25, "relative_step": False, "eps": [1e-20, 0.01]}
    optimizer = {"name": "adafactor", "lr": 0.01, "options": options}
    trainer, _ = trainer_of(config(optimizer=optimizer))
    with trainer:
        assert type(trainer.optimizer) is Adafactor
        (group,) = trainer.optimizer.param_groups
        assert (0.01, 0.25, (1e-20, 0.01)) == (group["lr"], group["weight_decay"], group["eps"])
        assert (False, True) == (group["relative_step"], group["scale_parameter"])


def test_that_of_torch_has_its_own_name() -> None:
    trainer, _ = trainer_of(config(optimizer={"name": "torch.optim:Adafactor"}))
    with trainer:
        assert type(trainer.optimizer) is torch.optim.Adafactor


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": (1e-30,)}, "optimizer.options.eps"),
        ({"eps": (0.0, 1e-3)}, "optimizer.options.eps"),
        ({"decay_rate": -0.8}, "optimizer.options.decay_rate"),
        ({"clip_threshold": 0.0}, "optimizer.options.clip_threshold"),
        ({"relative_step": "no"}, "optimizer.options.relative_step"),
        ({"beta1": 0.9}, "optimizer.options.beta1"),
    ],
    ids=str,
)
def test_a_wrong_option_is_found_with_the_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured(config(optimizer={"name": "adafactor", "options": options}))
    assert "\n" not in str(caught.value)


STREAMED: dict[str, dict[str, Any]] = {
    "cpu": {"optimizer_on": "cpu"},
    "device": {"optimizer_on": "device"},
    "in backward": {"update": "in_backward"},
}
SPLIT = {way: {**STREAMED[way], "master": "split"} for way in ("device", "in backward")}


def resumed(
    after: int, folder: Path, settings: dict[str, Any], dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the weights of a run, and of one that was saved after some steps and goes on."""
    expected = trained(settings, dtype=dtype)
    trainer, batches = trainer_of(settings, dtype=dtype)
    with trainer:
        for batch in batches[:after]:
            trainer.step(batch)
        trainer.save(folder)
    trainer, batches = trainer_of(settings, dtype=dtype)
    with trainer:
        trainer.load(folder)
        for batch in batches[after:]:
            trainer.step(batch)
    return expected, tensors_of(trainer.model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("after", [1, 7, 11])
def test_it_resumes_exactly(after: int, dtype: torch.dtype, tmp_path: Path) -> None:
    assert same_tensors(*resumed(after, tmp_path / "saved", config(), dtype))


@pytest.mark.parametrize("way", STREAMED)
def test_streamed_it_resumes_exactly(way: str, tmp_path: Path) -> None:
    settings = config(plugins={"layer-streaming": STREAMED[way]})
    assert same_tensors(*resumed(7, tmp_path / "saved", settings, torch.float32))


@pytest.mark.parametrize("way", SPLIT)
def test_with_split_masters_it_resumes_exactly(way: str, tmp_path: Path) -> None:
    settings = config(plugins={"layer-streaming": SPLIT[way]})
    assert same_tensors(*resumed(7, tmp_path / "saved", settings, torch.bfloat16))


def test_it_needs_weights_only_while_it_steps() -> None:
    assert same_tensors(trained(config()), trained(config(), HOSTILE_STORE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", STREAMED)
def test_streamed_it_is_the_same_to_the_bit(way: str, dtype: torch.dtype) -> None:
    exact = {"optimizer-offload": {"strategy": "cpu"}, "layer-streaming": STREAMED[way]}
    expected = trained(config(), dtype=dtype)
    assert same_tensors(expected, trained(config(plugins=exact), dtype=dtype))


@pytest.mark.parametrize("way", SPLIT)
def test_bfloat16_weights_with_split_masters_learn(way: str) -> None:
    trainer, batches = trainer_of(
        config(plugins={"layer-streaming": SPLIT[way]}), dtype=torch.bfloat16
    )
    with trainer:
        before = trainer.evaluate(batches)
        for batch in batches:
            trainer.step(batch)
        assert trainer.evaluate(batches) < 0.95 * before


@pytest.mark.parametrize(
    "sections",
    [
        {"plugins": {"mixed-precision": {"full": "bf16", "correct": "fp16"}}},
        {"plugins": {"gradient-accumulation": {"steps": 3}}},
        {"train": {"clip_norm": 0.5}},
        {"plugins": {"lr-schedule": {"name": "cosine", "warmup": 3}}},
    ],
    ids=str,
)
def test_it_learns_beside_what_changes_training(sections: dict[str, Any]) -> None:
    trainer, batches = trainer_of(config(**sections))
    with trainer:
        before = trainer.evaluate(batches)
        for batch in batches:
            trainer.step(batch)
        assert trainer.evaluate(batches) < 0.95 * before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_ledger_has_the_bytes_of_the_state(dtype: torch.dtype) -> None:
    trainer, batches = trainer_of(config(), dtype=dtype)
    with trainer:
        trainer.step(batches[0])
        stated = trainer.estimate_memory("full").total(kind="optimizer.state")
        (group,) = trainer.optimizer.param_groups
    elements = sum(
        sum(param.shape) if param.dim() == 2 else param.numel() for param in group["params"]
    )

    assert 4 * elements + 4 * len(group["params"]) == stated


def test_it_leaves_another_optimizer_alone() -> None:
    task = tiny_task(steps=1)
    with HybridTrainer(
        task.model, task.optimizer, loss_fn=tiny_loss, plugins=["adafactor"]
    ) as trainer:
        trainer.step(task.batches[0])
        assert task.optimizer is trainer.optimizer
