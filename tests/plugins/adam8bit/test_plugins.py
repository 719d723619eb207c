"""The plugins adam8bit and lion8bit in runs: named, refused, resumed, accounted for, streamed."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from neaptide import ConfigError, HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins
from neaptide.run.assembly import build_data
from neaptide_plugins.adam8bit.optimizer import Adam8bit
from neaptide_plugins.lion8bit.optimizer import Lion8bit
from neaptide_toolkit.testing.parting import same_bits
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task
from neaptide_verbs.schema.json_schema import json_schema

CLASSES = {"adam8bit": Adam8bit, "lion8bit": Lion8bit}
BYTES = {"adam8bit": 2 + 8 / 256, "lion8bit": 1 + 4 / 256}
NAMES = pytest.mark.parametrize("name", sorted(CLASSES))


def config(name: str, **options: Any) -> dict[str, Any]:
    return {
        "model": {"name": "builtin:mlp", "options": {"inputs": 64, "width": 64}},
        "data": {"name": "builtin:digits"},
        "optimizer": {"name": name, "lr": 1e-3, "options": options},
        "train": {"steps": 8, "batch_size": 16, "device": "cpu"},
    }


def run(name: str, *, save: Path | None = None, load: Path | None = None) -> str:
    with HybridTrainer.from_config(config(name)) as trainer:
        batches = iter(build_data(trainer.config, trainer.hooks).train)
        steps = [next(batches) for _ in range(8)]
        if load is not None:
            trainer.load(load)
        for place, batch in enumerate(steps):
            if load is None or place >= 4:
                trainer.step(batch)
            if save is not None and place == 3:
                trainer.save(save)
        return trainer.digest()


@NAMES
def test_naming_it_enables_it_with_its_options(name: str) -> None:
    with HybridTrainer.from_config(config(name, weight_decay=0.25)) as trainer:
        assert name in trainer.hooks.plugins
        assert CLASSES[name] is type(trainer.optimizer)
        (group,) = trainer.optimizer.param_groups
        assert (1e-3, 0.25) == (group["lr"], group["weight_decay"])


@NAMES
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.9}, "optimizer.options.beta"),
        ({"betas": (0.9, 1.0)}, "optimizer.options.betas"),
        ({"betas": (0.9,)}, "optimizer.options.betas"),
        ({"weight_decay": -1.0}, "optimizer.options.weight_decay"),
    ],
)
def test_a_wrong_option_is_found_with_the_config(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured(config(name, **options))
    assert "\n" not in str(caught.value)


@NAMES
def test_the_schema_for_editors_checks_its_options(name: str) -> None:
    schema, _ = json_schema(installed_plugins())
    right = {"optimizer": {"name": name, "options": {"betas": [0.9, 0.95]}}}
    wrong = {"optimizer": {"name": name, "options": {"beta": 0.9}}}

    jsonschema.validate(right, schema)
    jsonschema.validate({"optimizer": {"name": "sgd", "options": {"momentum": 0.9}}}, schema)
    with pytest.raises(jsonschema.ValidationError, match="'beta' was unexpected"):
        jsonschema.validate(wrong, schema)


@NAMES
def test_it_resumes_exactly(name: str, tmp_path: Path) -> None:
    expected = run(name)

    assert expected == run(name, save=tmp_path / "checkpoint")
    assert expected == run(name, load=tmp_path / "checkpoint")


@NAMES
def test_the_ledger_has_the_bytes_of_the_state(name: str) -> None:
    with HybridTrainer.from_config(config(name)) as trainer:
        trainer.step(next(iter(build_data(trainer.config, trainer.hooks).train)))
        state = trainer.estimate_memory("full").total(kind="optimizer.state")
        number = sum(parameter.numel() for parameter in trainer.model.parameters())

    # Codes and scales of whole blocks, and a step count for each of the tensors.
    assert BYTES[name] * number <= state <= BYTES[name] * number + 12 * 8


@NAMES
def test_float16_is_refused_in_one_line(name: str) -> None:
    changed = config(name) | {"model": {"name": f"{__name__}:halved"}}
    with pytest.raises(ConfigError, match=r"is torch\.float16; .* @ optimizer\.name"):
        HybridTrainer.from_config(changed)


def halved() -> torch.nn.Module:
    return torch.nn.Linear(4, 4).half()


@NAMES
def test_layers_stream_with_it_to_the_bit(name: str) -> None:
    def trained(settings: dict[str, Any] | None) -> dict[str, torch.Tensor]:
        task = tiny_task(steps=6)
        parameters = [p for p in task.model.parameters() if p.requires_grad]
        optimizer = CLASSES[name](parameters, lr=1e-2)
        plugins = {} if settings is None else {"layer-streaming": settings}
        with HybridTrainer(
            task.model, optimizer, loss_fn=tiny_loss, config={"plugins": plugins}
        ) as trainer:
            for batch in task.batches:
                trainer.step(batch)
        return {key: value.clone() for key, value in task.model.state_dict().items()}

    resident = trained(None)
    for way in ({}, {"optimizer_on": "device"}, {"update": "in_backward", "clip": "none"}):
        streamed = trained(way)
        assert all(same_bits(resident[key], streamed[key]) for key in resident), way
