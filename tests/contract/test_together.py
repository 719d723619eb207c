"""Plugins in pairs: what is exact alone is exact beside any other, and conflicts are explained."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from acting import ACTING
from support import CYCLE, same_tensors, some

from neaptide import FULL, ConfigError, HybridTrainer
from neaptide.hooks.registry import installed_plugins
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss, tiny_task

if TYPE_CHECKING:
    import torch

SPECS = {name: installed_plugins()[name] for name in installed_plugins().installed}
EXACT = sorted(
    name for name, spec in SPECS.items() if spec.numerics == "exact" and not spec.schemes
)
OTHERS = sorted(name for name, spec in SPECS.items() if not spec.schemes)
STEPS = 14
OTHERWISE = {
    ("activation-checkpointing", "activation-compression"): "what is recomputed is not compressed",
    ("layer-streaming", "activation-compression"): "what is recomputed is not compressed",
    ("layer-streaming", "mixed-precision"): "a shared weight is cast once a block, not once",
}
"""Pairs that compute something else together, and why."""


def trained(*names: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and weights of a run through all four phases with the named plugins."""
    task = tiny_task(steps=STEPS)
    predictors = [] if "predictor" in claims(*names) else [STEADY_PREDICTOR]
    config = {"phases": CYCLE, "plugins": {name: ACTING.get(name, {}) for name in names}}
    with HybridTrainer(
        task.model, task.optimizer, loss_fn=tiny_loss, config=config, plugins=predictors
    ) as trainer:
        losses = [trainer.step(batch).loss for batch in task.batches]
    return losses, task.model.state_dict()


def claims(*names: str) -> frozenset[str]:
    return frozenset[str]().union(*(SPECS[name].claims for name in names))


def alone(name: str, found: dict[str, Any] = {}) -> Any:  # noqa: B006 - one run a plugin
    if name not in found:
        found[name] = trained(name)
    return found[name]


@pytest.mark.parametrize(
    ("exact", "other"),
    some(
        [
            (exact, other)
            for exact, other in product(EXACT, OTHERS)
            if exact != other and (exact, other) not in OTHERWISE
        ],
        of=2,
    ),
)
def test_an_exact_plugin_changes_no_bit_beside_another(exact: str, other: str) -> None:
    declared = {exact, other} & (SPECS[exact].conflicts | SPECS[other].conflicts)
    if declared or SPECS[exact].claims & SPECS[other].claims:
        with pytest.raises(ConfigError, match=r"claim|conflicts"):
            trained(exact, other)
        return
    losses, weights = trained(exact, other)
    expected_losses, expected = alone(other)
    assert expected_losses == losses
    assert same_tensors(expected, weights)


def measured(every: int, *beside: str) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Return weights and figures of a run whose products are lowered, metered by two plugins."""
    task = tiny_task(steps=STEPS, coupled=False, width=32)
    settings: dict[str, Any] = {
        "activation-compression": {"min_elements": 64, "check_every": every},
        "low-precision-backward": {
            "even_if_slower": True,
            "min_elements": 256,
            "min_rows": 1,
            "check_every": 4,
            "phases": ["warmup", "full"],
        },
        "mixed-precision": {"full": "fp8", "fp8_even_if_slower": True, "fp8_min_elements": 256},
    }
    config = {"plugins": settings | {name: ACTING.get(name, {}) for name in beside}}
    with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as trainer:
        for batch in task.batches:
            trainer.step(batch, phase="full")
        figures = dict(trainer.hooks.plugins["low-precision-backward"].collect_metrics(FULL))
    return task.model.state_dict(), figures


@pytest.mark.parametrize("beside", [(), ("activation-checkpointing",), ("layer-streaming",)])
def test_what_one_plugin_measures_is_nothing_to_another(beside: tuple[str, ...]) -> None:
    weights, figures = measured(4, *beside)  # both are due in the same steps
    assert 1.0 == figures["low_precision_active"]
    assert 0 < figures["extra_variance"] < 0.025
    assert same_tensors(measured(0, *beside)[0], weights)
