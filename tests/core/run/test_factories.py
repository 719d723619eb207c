"""Models and data of a user's own, named by `module:function`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from neaptide import (
    ConfigError,
    Data,
    HybridTrainer,
    Task,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("on_device")


@pytest.fixture
def factories() -> Iterator[str]:
    """Return the name of a module with a user's own factories."""

    def model(width: int = 4) -> tuple[nn.Module, Any]:
        return nn.Linear(width, 1), lambda model, batch: model(batch).square().mean()

    def task() -> Task:
        return Task(*model())

    def wrong() -> str:
        return "a model"

    def batches(count: int = 3) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return [torch.randn(2, 4) for _ in range(count)], [torch.ones(2, 4)]

    def seeded(batch_size: int, seed: int, eval_batches: int, more: int = 0) -> list[torch.Tensor]:
        return [torch.tensor([batch_size, seed, eval_batches, more])]

    def nothing() -> int:
        return 3

    module = ModuleType("users_own_factories")
    factories = {"model": model, "task": task, "batches": batches, "seeded": seeded}
    module.__dict__.update(factories, wrong=wrong, nothing=nothing, constant=3)
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


@pytest.mark.parametrize("name", ["model", "task"])
def test_a_users_factories_make_a_run(factories: str, name: str) -> None:
    from neaptide.run.assembly import build_data

    config = {
        "model": {"name": f"{factories}:{name}"},
        "data": {"name": f"{factories}:batches", "options": {"count": 2}},
        "train": {"steps": 5},
    }
    with HybridTrainer.from_config(config) as trainer:
        data: Data = build_data(trainer.config, trainer.hooks)
        summary = trainer.fit(data)
    assert (5, True) == (summary["steps"], summary["val_loss"] is not None)


def test_the_seed_decides_the_model(factories: str) -> None:
    def digest(seed: int) -> str:
        config = {"model": {"name": f"{factories}:model"}, "seed": seed}
        with HybridTrainer.from_config(config) as trainer:
            return trainer.digest()

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"name": ""}, "name a model: 'builtin:byte-gpt' or 'package.module:factory' @ model.name"),
        ({"name": "../mine:model"}, "'../mine' is not the name of a module: write 'mine:model' "),
        ({"name": "mine.py:model"}, "cannot import 'mine.py'"),
        ({"name": "FACTORIES:modell"}, "'FACTORIES' has no 'modell' (did you mean 'model'?)"),
        ({"name": "FACTORIES:constant"}, "'FACTORIES:constant' must be callable (got int)"),
        ({"name": "FACTORIES:wrong"}, "'FACTORIES:wrong' must return an nn.Module, "),
        (
            {"name": "FACTORIES:model", "options": {"widht": 3}},
            "unknown option 'widht' (did you mean 'width'?) @ model.options.widht",
        ),
    ],
)
def test_a_wrong_factory_is_a_config_error(
    factories: str, section: dict[str, Any], problem: str
) -> None:
    section = {**section, "name": section["name"].replace("FACTORIES", factories)}
    with pytest.raises(ConfigError) as caught:
        HybridTrainer.from_config({"model": section})
    assert str(caught.value).startswith(problem.replace("FACTORIES", factories))


def test_data_that_cannot_be_iterated_is_a_config_error(factories: str) -> None:
    from neaptide.run.assembly import build_data

    config = {"model": {"name": f"{factories}:model"}, "data": {"name": f"{factories}:nothing"}}
    problem = r"must return an iterable of batches.*\(got int\)"
    with HybridTrainer.from_config(config) as trainer, pytest.raises(ConfigError, match=problem):
        build_data(trainer.config, trainer.hooks)


@pytest.mark.parametrize(
    ("options", "told"),
    [({}, [7, 5, 2, 0]), ({"more": 3}, [7, 5, 2, 3]), ({"seed": 9}, [7, 9, 2, 0])],
)
def test_a_data_factory_is_told_what_it_names(
    factories: str, options: dict[str, int], told: list[int]
) -> None:
    from neaptide.run.assembly import build_data

    config = {
        "seed": 5,
        "model": {"name": f"{factories}:model"},
        "data": {"name": f"{factories}:seeded", "options": options},
        "train": {"batch_size": 7},
        "eval": {"batches": 2},
    }
    with HybridTrainer.from_config(config) as trainer:
        (batch,) = build_data(trainer.config, trainer.hooks).train
    assert told == batch.tolist()
