"""AdEMAMix in runs: named, refused, warmed up, resumed, accounted for, beside other plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support import CYCLE, same_tensors, tensors_of

from neaptide import ConfigError, HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_plugins.ademamix.optimizer import AdEMAMix
from neaptide_toolkit.testing.hostile_store import HOSTILE_STORE
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss, tiny_task

if TYPE_CHECKING:
    from pathlib import Path

    import torch

STEPS = 14


def config(**sections: Any) -> dict[str, Any]:
    optimizer = {"name": "ademamix", "lr": 0.01, "options": {"alpha": 2.0}}
    return {"optimizer": optimizer, "phases": CYCLE, "train": {"steps": STEPS}} | sections


def trainer_of(settings: dict[str, Any], *plugins: Any) -> tuple[HybridTrainer, list[Any]]:
    """Return a trainer of the tiny task whose optimizer the config names, and its batches."""
    task = tiny_task(steps=STEPS)
    trainer = HybridTrainer(
        task.model, loss_fn=tiny_loss, config=settings, plugins=[STEADY_PREDICTOR, *plugins]
    )
    return trainer, task.batches


def trained(settings: dict[str, Any], *plugins: Any) -> dict[str, torch.Tensor]:
    trainer, batches = trainer_of(settings, *plugins)
    with trainer:
        for batch in batches:
            trainer.step(batch)
    return tensors_of(trainer.model)


@pytest.mark.parametrize(("options", "warmup"), [({}, 14), ({"warmup_steps": 0}, 0)], ids=str)
def test_naming_it_enables_it_with_its_options(options: dict[str, Any], warmup: int) -> None:
    optimizer = {"name": "ademamix", "lr": 0.01, "options": {"weight_decay": 0.25, **options}}
    trainer, _ = trainer_of(config(optimizer=optimizer))
    with trainer:
        assert type(trainer.optimizer) is AdEMAMix
        (group,) = trainer.optimizer.param_groups
        assert (0.01, 0.25, 5.0) == (group["lr"], group["weight_decay"], group["alpha"])
        assert warmup == group["warmup_steps"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": (0.9, 0.999)}, "optimizer.options.betas"),
        ({"betas": (0.9, 0.999, 1.0)}, "optimizer.options.betas"),
        ({"alpha": -1.0}, "optimizer.options.alpha"),
        ({"warmup_steps": 1.5}, "optimizer.options.warmup_steps"),
        ({"beta3": 0.9}, "optimizer.options.beta3"),
    ],
    ids=str,
)
def test_a_wrong_option_is_found_with_the_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured(config(optimizer={"name": "ademamix", "options": options}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("after", [1, 11])
def test_it_resumes_exactly_whatever_the_new_length(after: int, tmp_path: Path) -> None:
    expected, saved = trained(config()), tmp_path / "checkpoint"
    trainer, batches = trainer_of(config())
    with trainer:
        for batch in batches[:after]:
            trainer.step(batch)
        trainer.save(saved)
    trainer, batches = trainer_of(config(train={"steps": 5 * STEPS}))
    with trainer:
        trainer.load(saved, allow_changes=True)
        for batch in batches[after:]:
            trainer.step(batch)

    assert same_tensors(expected, tensors_of(trainer.model))


def test_it_needs_weights_only_while_it_steps() -> None:
    assert same_tensors(trained(config()), trained(config(), HOSTILE_STORE))


@pytest.mark.parametrize(
    "streaming",
    [{}, {"optimizer_on": "device"}, {"optimizer_on": "device", "update": "in_backward"}],
    ids=str,
)
def test_what_is_exact_is_exact_beside_it(streaming: dict[str, Any]) -> None:
    exact = {"optimizer-offload": {"strategy": "cpu"}, "layer-streaming": streaming}
    assert same_tensors(trained(config()), trained(config(plugins=exact)))


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
        assert trainer.evaluate(batches) < 0.9 * before


def test_the_ledger_has_the_bytes_of_the_state() -> None:
    trainer, batches = trainer_of(config())
    with trainer:
        trainer.step(batches[0])
        stated = trainer.estimate_memory("full").total(kind="optimizer.state")
        (group,) = trainer.optimizer.param_groups
    elements = [param.numel() for param in group["params"]]

    assert 12 * sum(elements) + 4 * len(elements) == stated


def test_it_leaves_another_optimizer_alone() -> None:
    task = tiny_task(steps=1)
    plugins = ["ademamix"]
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, plugins=plugins) as trainer:
        trainer.step(task.batches[0])
        assert task.optimizer is trainer.optimizer
        assert "warmup_steps" not in task.optimizer.param_groups[0]
