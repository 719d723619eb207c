"""Muon in runs: named, refused, resumed, accounted for, and beside other plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from support import CYCLE, DEVICE, same_tensors, tensors_of

from neaptide import ConfigError, HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_plugins.muon.optimizer import Muon
from neaptide_toolkit.testing.hostile_store import HOSTILE_STORE
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, TinyNet, tiny_loss, tiny_task

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
STEPS = 14


def config(**sections: Any) -> dict[str, Any]:
    return {"optimizer": {"name": "muon", "lr": 0.01}, "phases": CYCLE} | sections


def trainer_of(
    settings: dict[str, Any], *plugins: Any, device: torch.device = DEVICE
) -> tuple[HybridTrainer, list[Any]]:
    """Return a trainer of the tiny task whose optimizer the config names, and its batches."""
    task = tiny_task(steps=STEPS, device=device)
    settings = settings | {"train": {**settings.get("train", {}), "device": str(device)}}
    predictors = [] if "predictor-drift" in settings.get("plugins", {}) else [STEADY_PREDICTOR]
    trainer = HybridTrainer(
        task.model, loss_fn=tiny_loss, config=settings, plugins=[*predictors, *plugins]
    )
    return trainer, task.batches


def trained(
    settings: dict[str, Any], *plugins: Any, device: torch.device = DEVICE
) -> dict[str, torch.Tensor]:
    trainer, batches = trainer_of(settings, *plugins, device=device)
    with trainer:
        for batch in batches:
            trainer.step(batch)
    return tensors_of(trainer.model)


def test_naming_it_enables_it_with_its_options() -> None:
    options = {"adamw_lr_ratio": 0.5, "weight_decay": 0.25, "momentum": 0.8, "ns_steps": 6}
    optimizer = {"name": "muon", "lr": 0.01, "options": options}
    trainer, _ = trainer_of(config(optimizer=optimizer))
    with trainer:
        assert type(trainer.optimizer) is Muon
        matrices, rest = trainer.optimizer.param_groups
        assert ("muon", 0.01, 0.25) == (matrices["kind"], matrices["lr"], matrices["weight_decay"])
        assert ("adamw", 0.005, 0.25) == (rest["kind"], rest["lr"], rest["weight_decay"])
        assert (0.8, 6) == (matrices["momentum"], matrices["ns_steps"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentun": 0.9}, r"'momentum'\?\) @ optimizer.options.momentun"),
        ({"momentum": 1.0}, "optimizer.options.momentum"),
        ({"adamw_betas": (0.9, 1.0)}, "optimizer.options.adamw_betas"),
        ({"ns_dtype": "float16"}, "optimizer.options.ns_dtype"),
        ({"split": {"*qkv*": []}}, "optimizer.options.split"),
        ({"split": {"*qkv*": 3}}, r"optimizer.options.split.*qkv"),
        ({"scale": "none"}, "optimizer.options.scale"),
    ],
    ids=str,
)
def test_a_wrong_option_is_found_with_the_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured(config(optimizer={"name": "muon", "options": options}))
    assert "\n" not in str(caught.value)


def test_rows_that_do_not_divide_are_found_before_the_first_step() -> None:
    options = {"split": {"*up.weight": [2, 1]}}
    with pytest.raises(ConfigError, match=r"32 rows do not divide .* @ optimizer.options.split"):
        trainer_of(config(optimizer={"name": "muon", "options": options}))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="no trainable parameters; unfreeze some"):
        HybridTrainer(TinyNet().requires_grad_(False), loss_fn=tiny_loss, config=config())


def test_a_model_without_a_matrix_of_its_own_is_told(tmp_path: Path) -> None:
    run = {"dir": str(tmp_path / "run")}
    patterns = {"optimizer": {**config()["optimizer"], "options": {"adamw": ["*"]}}}
    trainer, batches = trainer_of({**config(), **patterns, "run": run})
    with trainer:
        trainer.step(batches[0])
    events = (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8")
    assert 1 == events.count("muon.no-matrix")


@pytest.mark.parametrize("after", [1, 7, 11])
def test_it_resumes_exactly(after: int, tmp_path: Path) -> None:
    expected, saved = trained(config()), tmp_path / "checkpoint"
    trainer, batches = trainer_of(config())
    with trainer:
        for batch in batches[:after]:
            trainer.step(batch)
        trainer.save(saved)
    trainer, batches = trainer_of(config())
    with trainer:
        trainer.load(saved)
        for batch in batches[after:]:
            trainer.step(batch)

    assert same_tensors(expected, tensors_of(trainer.model))


def test_it_needs_weights_only_while_it_steps() -> None:
    assert same_tensors(trained(config()), trained(config(), HOSTILE_STORE))


OFFLOAD: dict[str, Any] = {"optimizer-offload": {"strategy": "cpu"}}
STREAMING: dict[str, Any] = {"layer-streaming": {}}


@pytest.mark.parametrize(
    "exact",
    [OFFLOAD | STREAMING, {"activation-checkpointing": {"interval": 1}}],
    ids=str,
)
@pytest.mark.parametrize("others", [{}, {"int8": {}}], ids=str)
def test_what_is_exact_is_exact_beside_it(exact: dict[str, Any], others: dict[str, Any]) -> None:
    # Streamed blocks are stepped on the host. On a GPU the others are then a batch of their own.
    device = CPU if exact == OFFLOAD | STREAMING else DEVICE
    expected = trained(config(plugins=others), device=device)

    assert same_tensors(expected, trained(config(plugins=exact | others), device=device))


@pytest.mark.parametrize(
    "sections",
    [
        {"plugins": {"mixed-precision": {"full": "bf16", "correct": "fp16"}}},
        {"plugins": {"gradient-accumulation": {"steps": 3}}},
        {"plugins": {"predictor-drift": {"min_window": 4, "sample_every": 1}}},
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
        groups = trainer.optimizer.param_groups
    counts = {group["kind"]: [param.numel() for param in group["params"]] for group in groups}

    state = 4 * sum(counts["muon"]) + 8 * sum(counts["adamw"])
    assert state + 4 * sum(map(len, counts.values())) == stated


def test_it_is_silent_about_another_optimizer() -> None:
    task = tiny_task(steps=1)
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, plugins=["muon"]) as trainer:
        trainer.step(task.batches[0])
        assert trainer.optimizer is task.optimizer
        assert {} == attrs.asdict(trainer.hooks.plugins["muon"].config)
