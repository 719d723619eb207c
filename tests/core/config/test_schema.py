from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from neaptide.config import RunConfig, field
from neaptide.config.schema import OptimizerSection, PredictSection, RunSection, TrainSection


def sections(section: type[Any] = RunConfig) -> list[type[Any]]:
    inner = [f.type for f in attrs.fields(attrs.resolve_types(section)) if attrs.has(f.type)]
    return [section, *(found for each in inner for found in sections(each))]


FIELDS = [
    pytest.param(option, id=f"{section.__name__}.{option.name}")
    for section in sections()
    for option in attrs.fields(section)
]


@pytest.mark.parametrize("option", FIELDS)
def test_every_field_has_a_default_a_check_and_one_line_of_help(
    option: attrs.Attribute[Any],
) -> None:
    assert option.default is not attrs.NOTHING
    assert option.validator is not None
    assert option.metadata["help"].strip()
    assert "\n" not in option.metadata["help"]


@pytest.mark.parametrize("section", sections())
def test_every_section_is_frozen_and_takes_keywords_only(section: type[Any]) -> None:
    assert all(option.kw_only for option in attrs.fields(section))
    first = attrs.fields(section)[0].name
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(section(), first, None)


def test_defaults_are_those_users_of_such_trainers_know() -> None:
    config = RunConfig()
    assert config.phases.warmup.steps is None
    assert config.phases.full.steps == 200
    assert config.phases.predict == PredictSection(
        max_horizon=50, confidence=None, correction_interval=15, rise=0.02, halvings=2
    )
    assert config.phases.correct.steps == 25
    assert config.optimizer.lr == 1e-3
    assert config.train.device == "auto"


def test_free_tables_are_not_shared_between_configurations() -> None:
    assert RunConfig().model.options is not RunConfig().model.options


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (RunConfig, {"version": 2}),
        (RunConfig, {"seed": -1}),
        (RunConfig, {"seed": 2**63}),
        (RunConfig, {"plugins_from": "all"}),
        (RunSection, {"dir": ""}),
        (RunSection, {"dir": "a\0b"}),
        (RunSection, {"checkpoint_every": -1}),
        (RunSection, {"keep": -1}),
        (RunSection, {"progress": "loud"}),
        (TrainSection, {"steps": 0}),
        (TrainSection, {"batch_size": 0}),
        (TrainSection, {"device": "gpu"}),
        (TrainSection, {"device": "cuda:"}),
        (TrainSection, {"clip_norm": 0.0}),
        (TrainSection, {"clip_norm": math.inf}),
        (TrainSection, {"max_skipped": -1}),
        (OptimizerSection, {"lr": 0.0}),
        (OptimizerSection, {"lr": math.nan}),
        (PredictSection, {"max_horizon": 0}),
        (PredictSection, {"confidence": 0.0}),
        (PredictSection, {"confidence": 1.5}),
        (PredictSection, {"correction_interval": 0}),
        (PredictSection, {"rise": -0.1}),
        (PredictSection, {"halvings": -1}),
    ],
)
def test_sections_built_by_hand_are_checked_too(section: type[Any], values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"'{next(iter(values))}' must be"):
        section(**values)


@pytest.mark.parametrize(
    "device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12", "xpu", "xpu:1", "mps"]
)
def test_devices(device: str) -> None:
    assert TrainSection(device=device).device == device


def test_field_makes_a_section_of_an_attrs_class() -> None:
    @attrs.frozen(kw_only=True)
    class Outer:
        run: RunSection = field(RunSection, help="where it writes")

    assert Outer() == Outer(run=RunSection())
    with pytest.raises(TypeError, match="'run' must be"):
        Outer(run=TrainSection())
