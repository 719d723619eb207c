"""Optimizers of ours in plain torch: resumed and streamed to the bit, beside other plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from optimizer_runs import SPLIT, STREAMED, config, learns, resumed, trained
from support import DEVICE, same_tensors, some

from neaptide import HybridTrainer
from neaptide_toolkit.testing.hostile_store import HOSTILE_STORE
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task

if TYPE_CHECKING:
    from pathlib import Path

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adafactor": {"lr": 0.05, "options": {"weight_decay": 0.1}},
    "adam-mini": {"lr": 0.01, "options": {"weight_decay": 0.1}},
    "apollo": {"lr": 0.01, "options": {"weight_decay": 0.1, "update_proj_gap": 3}},
    "ademamix": {"lr": 0.01, "options": {"alpha": 2.0}},
    "lion": {"lr": 0.003, "options": {"weight_decay": 0.1}},
    "adam8bit": {"lr": 0.003},
    "lion8bit": {"lr": 0.003},
    "muon": {"lr": 0.01, "options": {"ns_dtype": "float32"}},
}


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"name": request.param, **OPTIMIZERS[request.param]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("after", some([7, 1, 11]))
def test_it_resumes_exactly(
    optimizer: dict[str, Any], after: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    assert same_tensors(*resumed(after, tmp_path / "saved", config(optimizer), dtype))


@pytest.mark.parametrize("way", STREAMED)
def test_streamed_it_resumes_exactly(optimizer: dict[str, Any], way: str, tmp_path: Path) -> None:
    settings = config(optimizer, plugins={"layer-streaming": STREAMED[way]})
    assert same_tensors(*resumed(7, tmp_path / "saved", settings, torch.float32))


@pytest.mark.parametrize("way", SPLIT)
def test_with_split_masters_it_resumes_exactly(
    optimizer: dict[str, Any], way: str, tmp_path: Path
) -> None:
    settings = config(optimizer, plugins={"layer-streaming": SPLIT[way]})
    assert same_tensors(*resumed(7, tmp_path / "saved", settings, torch.bfloat16))


def test_it_needs_weights_only_while_it_steps(optimizer: dict[str, Any]) -> None:
    settings = config(optimizer)
    assert same_tensors(trained(settings), trained(settings, HOSTILE_STORE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", STREAMED)
def test_streamed_it_is_the_same_to_the_bit(
    optimizer: dict[str, Any], way: str, dtype: torch.dtype
) -> None:
    if (optimizer["name"], way) == ("muon", "cpu") and DEVICE.type != "cpu":
        pytest.skip("torch's AdamW, which updates a part, rounds otherwise on the host")
    exact = {"optimizer-offload": {"strategy": "cpu"}, "layer-streaming": STREAMED[way]}
    expected = trained(config(optimizer), dtype=dtype)
    assert same_tensors(expected, trained(config(optimizer, plugins=exact), dtype=dtype))


@pytest.mark.parametrize("way", SPLIT)
def test_bfloat16_weights_with_split_masters_learn(optimizer: dict[str, Any], way: str) -> None:
    assert learns(config(optimizer, plugins={"layer-streaming": SPLIT[way]}), torch.bfloat16)


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
def test_it_learns_beside_what_changes_training(
    optimizer: dict[str, Any], sections: dict[str, Any]
) -> None:
    assert learns(config(optimizer, **sections))


def test_it_leaves_another_optimizer_alone(optimizer: dict[str, Any]) -> None:
    task, plugins = tiny_task(steps=1), [optimizer["name"]]
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, plugins=plugins) as trainer:
        trainer.step(task.batches[0])
        assert task.optimizer is trainer.optimizer


def test_a_loaded_state_has_the_strides_of_its_weight(
    optimizer: dict[str, Any], tmp_path: Path
) -> None:
    """A checkpoint has no strides, and torch rounds otherwise where strides differ."""

    def trainer() -> HybridTrainer:
        net = torch.nn.Linear(7, 10, bias=False).to(DEVICE)
        net.weight = torch.nn.Parameter(net.weight.detach().mT.contiguous().mT)
        settings = {"optimizer": optimizer}
        return HybridTrainer(net, loss_fn=lambda net, x: net(x).square().mean(), config=settings)

    def strides(trainer: HybridTrainer) -> list[Any]:
        states = trainer.optimizer.state.values()
        return [value.stride() for state in states for value in state.values()]

    with trainer() as before, trainer() as after:
        before.step(torch.ones(4, 7, device=DEVICE))
        before.save(tmp_path / "saved")
        after.load(tmp_path / "saved")
        assert strides(before) == strides(after)
