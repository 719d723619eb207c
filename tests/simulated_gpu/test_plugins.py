"""Plugins on a device, through the trainer: exact ones give the resident run's bits, none races."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import disks
import pytest
import torch
from on_device import task_on_device
from support import ROUNDS_OTHERWISE, same_tensors, tensors_of

from neaptide import HybridTrainer
from neaptide.hooks.registry import installed_plugins
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS = 24
ON_CPU = {"layer-streaming": {"optimizer_on": "cpu", "mode": "graph", "resident": 0}}
ACCUMULATED = {"gradient-accumulation": {"steps": 3}}

NOT_EXACT = {
    ("optimizer-offload", "strategy", "compress"): "the state is rounded",
    ("optimizer-offload", "strategy", "drop"): "the state is lost",
    ("ema", "warmup", False): "another mean",
    ("layer-streaming", "clip", "per_tensor"): "another update",
    ("layer-streaming", "clip", "lagged"): "another update",
    ("sharding", "param_dtype", "bfloat16"): "weights are rounded where there are others",
    ("layer-streaming", "master", "split"): "of bfloat16 weights, which tests of the plugin train",
}
"""Choices of exact plugins that change the bits, and why."""

ON_DISK: dict[str, Any] = {"tier": "disk", "path": disks.folder(), "ram_gib": 0.0}
NEEDS = {
    ("layer-streaming", "tier", "disk"): ON_DISK,
    ("layer-streaming", "inputs", "disk"): ON_DISK,
    ("profiler", "trace_ops", True): {"trace": [2, 5]},
    ("sharding", "offload", "cpu"): {"stage": 3},
    ("sharding", "offload", "pinned"): {"stage": 3},
    ("profiler", "snapshot_history", True): {"snapshot_at": [3]},
}
"""Other settings without which a choice does nothing or is refused."""

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "activation-checkpointing": [
        {}, {"interval": 2}, {"ratio": 0.5}, {"phases": ["warmup"]}, {"save_ops": ["aten.addmm"]},
    ],
    "delayed-verdict": [{}],
    "layer-streaming": [
        {}, {"phases": ["warmup", "predict"]}, {"max_active_layers": 3, "prefetch_distance": 2},
        {"resident": 0}, {"resident": 1}, {"optimizer_slots": 1},
    ],
    "optimizer-offload": [{}, {"lookahead": 0}],
    "profiler": [{}, {"every": 3}, {"trace": [2, 5]}, {"snapshot_at": [3]}],
}  # fmt: skip
"""Settings that are no choice of a few."""

OTHERS: dict[str, dict[str, Any]] = {
    "activation-compression": {"activation-compression": {}},
    "int8": {"int8": {}},
    "low-precision-backward": {"low-precision-backward": {}},
    "mixed-precision": {"mixed-precision": {}},
    "dynamics-linear": {"dynamics-linear": {}},
    "dynamics-mlp": {"dynamics-mlp": {}},
    "dynamics-rssm": {"dynamics-rssm": {}},
}


def choices(name: str, config: type) -> Iterator[dict[str, Any]]:
    """Yield the settings of every choice: each value of a Literal and of a bool."""
    for field, kind in get_type_hints(config).items():
        values = get_args(kind) if get_origin(kind) is Literal else (True, False)
        if kind is not bool and get_origin(kind) is not Literal:
            continue
        for value in values:
            if (name, field, value) not in NOT_EXACT:
                yield {field: value, **NEEDS.get((name, field, value), {})}


def exact() -> list[Any]:
    """Return every way to run a plugin that says it is exact, as parameters of a test."""
    ways: list[Any] = []
    for name, spec in sorted(installed_plugins().items()):
        found = list(SETTINGS.get(name, []))
        if spec.numerics == "exact" and spec.config is not None:
            found += choices(name, spec.config)
        ways += [pytest.param({name: each}, id=f"{name} {each}") for each in found]
    for mode in get_args(Literal["recompute", "graph"]):
        plugins = {**ACCUMULATED, "layer-streaming": {"mode": mode}}
        ways.append(pytest.param(plugins, id=f"{mode}, accumulated"))
    return ways


def trained(
    plugins: dict[str, Any], directory: Path
) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    config = {
        "run": {"dir": str(directory)},
        "train": {"steps": STEPS, "device": "cuda"},
        "phases": {"warmup": {"steps": 10}, "full": {"steps": 4}, "correct": {"steps": 2}},
        "plugins": {"ema": {}, "predictor-drift": {"min_window": 8}, **plugins},
    }
    task = task_on_device(streams="layer-streaming" in plugins)
    batches = task.batches
    trainer = HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config)
    with trainer:
        losses = [trainer.step(batch).loss for batch in batches[:STEPS]]
        losses.append(trainer.evaluate(batches[STEPS:]))
    return losses, {name: value.cpu() for name, value in tensors_of(trainer.model).items()}


def steps_on_a_real_cpu(plugins: dict[str, Any]) -> bool:
    """Return whether the optimizer steps on a CPU that rounds otherwise than the device."""
    return ROUNDS_OTHERWISE and plugins.get("layer-streaming", {}).get("optimizer_on") == "cpu"


@pytest.fixture(scope="session")
def resident(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what the run gives without the plugin, or the first run that steps on the CPU."""
    return cache(
        lambda *, accumulated, on_cpu: trained(
            {**(ACCUMULATED if accumulated else {}), **(ON_CPU if on_cpu else {})},
            tmp_path_factory.mktemp("resident"),
        )
    )


@pytest.mark.parametrize("plugins", exact())
def test_an_exact_plugin_gives_the_resident_runs_bits(
    plugins: dict[str, Any], resident: Any, tmp_path: Path
) -> None:
    losses, weights = trained(plugins, tmp_path)
    plain, others = resident(
        accumulated="gradient-accumulation" in plugins, on_cpu=steps_on_a_real_cpu(plugins)
    )
    assert plain == losses
    assert same_tensors(others, weights)


@pytest.mark.parametrize("way", OTHERS)
def test_a_plugin_trains_on_the_device_without_a_race(way: str, tmp_path: Path) -> None:
    losses, _ = trained(OTHERS[way], tmp_path)
    assert losses[-1] < losses[0]


def test_what_is_left_out_is_a_choice_of_a_plugin() -> None:
    for name, field, value in NOT_EXACT:
        kind = get_type_hints(installed_plugins()[name].config)[field]
        assert value in (get_args(kind) or (True, False))
