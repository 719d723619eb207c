"""torchao's float8 training in runs: its bits, undone at the end, resumed, streamed, refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_linear import Float8Linear

from neaptide import ConfigError, HybridTrainer
from neaptide_toolkit.testing import LAWS, check_plugin

if TYPE_CHECKING:
    from pathlib import Path

NAME = "torchao-float8"
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")


def net() -> nn.Module:
    torch.manual_seed(0)
    block = lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))  # noqa: E731
    return nn.Sequential(*(block() for _ in range(3)), nn.Linear(32, 10))


def batch(step: int, rows: int = 16) -> torch.Tensor:
    return torch.randn(rows, 32, generator=torch.Generator().manual_seed(step))


def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x[:, :10]).square().mean()


def config(plugins: Any = (), **settings: Any) -> dict[str, Any]:
    return {
        "train": {"device": "cpu", "clip_norm": None},
        "plugins": {NAME: settings, **dict(plugins)},
    }


def run(
    settings: dict[str, Any],
    *,
    save: Path | None = None,
    load: Path | None = None,
    rows: int = 16,
) -> tuple[str, nn.Module]:
    model = net()
    with HybridTrainer(model, loss_fn=loss_fn, config=settings) as trainer:
        if load is not None:
            trainer.load(load)
        for step in range(0 if load is None else 3, 6):
            trainer.step(batch(step, rows))
            if save is not None and step == 2:
                trainer.save(save)
        digest = trainer.digest()
    return digest, model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize("emulate", [False, True], ids=["float8", "emulated"])
def test_a_run_has_the_bits_of_torchao_in_a_plain_loop(*, emulate: bool) -> None:
    model = net()
    convert_to_float8_training(
        model,
        module_filter_fn=lambda module, _: module.out_features % 16 == 0,
        config=Float8LinearConfig(emulate=emulate),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(6):
        optimizer.zero_grad()
        loss_fn(model, batch(step)).backward()
        optimizer.step()
    converted = run(config(emulate=emulate))[1]
    assert same(model, converted)
    assert not same(converted, run({**config(), "plugins": {}})[1])


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_trains_batches_of_any_size(recipe: str) -> None:
    with HybridTrainer(net(), loss_fn=loss_fn, config=config(recipe=recipe)) as trainer:
        losses = [float(trainer.step(batch(0, 13)).loss) for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]


def test_layers_of_other_sizes_and_those_left_out_stay_and_the_end_undoes_all() -> None:
    model = net()
    before = [type(module) for module in model.modules()]
    with HybridTrainer(model, loss_fn=loss_fn, config=config(leave_out=["1.0"])) as trainer:
        trainer.step(batch(0))
        kinds = {
            name: isinstance(module, Float8Linear)
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear)
        }
    assert {"0.0": True, "0.2": True, "1.0": False, "1.2": True} == dict(list(kinds.items())[:4])
    assert kinds["3"] is False
    assert before == [type(module) for module in model.modules()]


def test_it_resumes_exactly(tmp_path: Path) -> None:
    digest, _ = run(config(), save=tmp_path / "checkpoint")
    assert digest == run(config(), load=tmp_path / "checkpoint")[0]


@pytest.mark.parametrize(
    "plugins",
    [
        {"layer-streaming": {}},
        {"layer-streaming": {"update": "in_backward", "clip": "none"}},
        {"activation-checkpointing": {}},
        {"gradient-accumulation": {"steps": 1}},
    ],
    ids=str,
)
def test_beside_other_plugins_it_has_the_same_bits(plugins: dict[str, Any]) -> None:
    assert same(run(config())[1], run(config(plugins))[1])


@pytest.mark.parametrize("law", LAWS)
def test_keeps_the_contract(law: str) -> None:
    check_plugin(NAME, laws=[law])


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        (nn.Linear(32, 32), {}, "no linear layer inside the model"),
        (nn.Sequential(nn.Linear(7, 9)), {}, "sizes that are multiples of 16"),
        (nn.Sequential(nn.Linear(32, 32)), {"recipe": "best"}, "@ plugins.torchao-float8.recipe"),
    ],
    ids=["root", "sizes", "recipe"],
)
def test_what_cannot_work_is_one_line(model: nn.Module, settings: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HybridTrainer(model, loss_fn=loss_fn, config=config(**settings))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
