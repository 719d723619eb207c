"""APOLLO in runs: named, refused, accounted for; the rest is in tests/toolkit/optim."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from optimizer_runs import STREAMED, config, resumed, trained, trainer_of
from plans import planned
from support import same_tensors

from neaptide import ConfigError
from neaptide.hooks.enabling import configured
from neaptide_plugins.apollo.groups import parameter_groups
from neaptide_plugins.apollo.optimizer import Apollo, rank_in
from neaptide_toolkit.optimizer_state import state_bytes
from neaptide_toolkit.testing.kinds import deep

if TYPE_CHECKING:
    from pathlib import Path

MINI: dict[str, Any] = {
    "rank": 1,
    "scale_type": "tensor",
    "alpha": 128**0.5,
    "update_proj_gap": 4,
    "adamw": [],
}


def named(**options: Any) -> dict[str, Any]:
    return config({"name": "apollo", "lr": 0.01, "options": options})


def test_naming_it_enables_it_with_its_options() -> None:
    trainer, _ = trainer_of(named(betas=[0.8, 0.9], **MINI))
    with trainer:
        assert type(trainer.optimizer) is Apollo
        groups = trainer.optimizer.param_groups
        assert {"apollo"} == {group["kind"] for group in groups}
        for group in groups:
            assert (0.01, (0.8, 0.9)) == (group["lr"], group["betas"])
            assert (1, "tensor", 4) == tuple(
                group[name] for name in ("rank", "scale_type", "update_proj_gap")
            )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": -1}, "optimizer.options.rank"),
        ({"rank": 2.5}, "optimizer.options.rank"),
        ({"scale_type": "row"}, "optimizer.options.scale_type"),
        ({"alpha": 0.0}, "optimizer.options.alpha"),
        ({"update_proj_gap": 0}, "optimizer.options.update_proj_gap"),
        ({"gamma": 0.9}, "optimizer.options.gamma"),
        ({"betas": (0.9, 1.0)}, "optimizer.options.betas"),
        ({"eps": 0.0}, "optimizer.options.eps"),
        ({"weight_decay": -1.0}, "optimizer.options.weight_decay"),
        ({"adamw": "*head*"}, "optimizer.options.adamw"),
        ({"scale": 128}, "optimizer.options.scale"),
        ({"seed": -1}, "optimizer.options.seed"),
        ({"rounding": "up"}, "optimizer.options.rounding"),
    ],
    ids=str,
)
def test_a_wrong_option_is_found_with_the_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured(named(**options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{}, MINI], ids=["apollo", "mini"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_ledger_has_the_bytes_of_the_state(dtype: torch.dtype, options: dict[str, Any]) -> None:
    trainer, batches = trainer_of(named(**options), dtype=dtype)
    with trainer:
        foreseen = trainer.estimate_memory("full").total(kind="optimizer.state")
        trainer.step(batches[0])
        stated = trainer.estimate_memory("full").total(kind="optimizer.state")
        expected = 0
        for group in trainer.optimizer.param_groups:
            for param in group["params"]:
                rank = rank_in(group, param)
                moment = param.numel() if rank is None else max(param.shape) * rank
                expected += 4 * (2 * moment + 1 + (rank is not None))
    assert expected == stated == foreseen


@pytest.mark.parametrize("way", STREAMED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_as_mini_it_streams_and_resumes_to_the_bit(
    way: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    settings = named(**MINI) | {"plugins": {"layer-streaming": STREAMED[way]}}
    expected, found = resumed(7, tmp_path / "saved", settings, dtype)
    assert same_tensors(expected, found)
    exact = {"optimizer-offload": {"strategy": "cpu"}}
    settings = named(**MINI) | {"plugins": settings["plugins"] | exact}
    assert same_tensors(trained(named(**MINI), dtype=dtype), trained(settings, dtype=dtype))


@pytest.mark.parametrize("options", [{}, {"rank": 1, "scale_type": "tensor"}], ids=str)
def test_a_plan_has_the_bytes_of_the_state(options: dict[str, Any], tmp_path: Path) -> None:
    words = [f"optimizer.options.{name}={value}" for name, value in options.items()]
    given = [word for each in ("optimizer.name=apollo", *words) for word in ("--set", each)]
    done = planned(tmp_path, *given, "--json", width=256)
    found = json.loads(done.stdout)["tiers"]["RAM"]["kinds"]["optimizer state"]

    module = deep(layers=2, width=256).module
    optimizer = Apollo(parameter_groups(module, ()), **options)
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)
    optimizer.step()
    assert found == pytest.approx(sum(state_bytes(optimizer).values()), rel=0.01)
