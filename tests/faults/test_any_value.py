"""Every setting there is, given every odd value: a typed error in lines, or a run."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from neaptide import HybridTrainer, NeaptideError
from neaptide.config import RunConfig
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins
from neaptide.run.assembly import build_data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "1e400": float("1e400"),
    "2**63": 2**63,
    "-2**63": -(2**63),
    "10**400": 10**400,
    "-0.0": -0.0,
    "0": 0,
    "true": True,
    "none": None,
    "text": "x",
    "empty": "",
    "nul": "\0",
    "long": "x" * 5000,
    "surrogate": "\ud800",
    "list": [1, "a", None],
    "table": {"a": {"b": 1}},
    "deep": nested(500),
    "object": object(),
}


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where a directory that a setting names may come into being."""
    monkeypatch.chdir(tmp_path)


def settings(cls: type[Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every setting of a config class."""
    for field in attrs.fields(attrs.resolve_types(cls)):
        path = (*prefix, field.name)
        if isinstance(field.type, type) and attrs.has(field.type):
            yield from settings(field.type, path)
        yield path


def every_setting() -> list[tuple[str, ...]]:
    core = [path for path in settings(RunConfig) if path[0] != "plugins"]
    plugins = [
        ("plugins", name, *path)
        for name, spec in installed_plugins().usable().items()
        for path in settings(spec.config)
    ]
    return [*core, ("plugins",), *plugins]


def config_with(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model": {"name": "builtin:mlp", "options": {"width": 4}},
        "data": {"name": "builtin:digits"},
        "train": {"steps": 3, "batch_size": 2, "device": "cpu"},
        "phases": {"warmup": {"steps": 1}, "full": {"steps": 1}},
    }
    table = config
    for key in path[:-1]:
        table = table.setdefault(key, {})
    table[path[-1]] = value
    return config


def refusal(path: tuple[str, ...], value: Any) -> str | None:
    try:
        configured(config_with(path, value))
    except NeaptideError as error:
        return str(error)
    return None


SETTINGS = every_setting()


def test_the_settings_are_all_there() -> None:
    assert ("train", "clip_norm") in SETTINGS
    assert ("phases", "predict", "max_horizon") in SETTINGS
    assert ("plugins", "ema", "decay") in SETTINGS
    assert len(SETTINGS) > 60


@pytest.mark.parametrize("name", VALUES)
def test_every_setting_takes_the_value_or_says_what_is_wrong_with_it(name: str) -> None:
    for path in SETTINGS:
        found = refusal(path, VALUES[name])
        if found is not None:
            assert found, path
            assert all(len(line) < 1000 for line in found.splitlines()), path
            assert path[0] in found or name == "deep", (path, found)


FIXED = {("train", "steps"), ("run", "dir"), ("train", "batch_size")}
"""What would make the run itself long, write elsewhere, or fill the memory."""


def accepted(name: str) -> list[tuple[str, ...]]:
    return [path for path in SETTINGS if path not in FIXED and not refusal(path, VALUES[name])]


@pytest.mark.parametrize("name", VALUES)
def test_whatever_is_accepted_trains_or_is_refused_later(name: str) -> None:
    for path in accepted(name):
        with (
            suppress(NeaptideError),
            HybridTrainer.from_config(config_with(path, VALUES[name])) as trainer,
        ):
            summary = trainer.fit(build_data(trainer.config, trainer.hooks))
            assert 3 == summary["steps"], path
