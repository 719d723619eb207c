"""Plugins as strangers would ship them, for everything that reads configurations."""

from __future__ import annotations

import attrs
import pytest
from attrs.validators import ge, in_

from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class EmaConfig:
    decay: float = 0.999
    learning_rate: float = attrs.field(default=1.0, validator=ge(0))
    every: int = 1


@attrs.frozen(kw_only=True)
class Int8Config:
    bits: int = attrs.field(default=8, validator=in_([4, 8]))


@pytest.fixture
def specs() -> dict[str, PluginSpec]:
    presets = {"fast": {"decay": 0.9, "every": 5}, "slow": {"decay": 0.9999}}
    return {
        spec.name: spec
        for spec in (
            PluginSpec(name="ema", load="strangers:Ema", config=EmaConfig, presets=presets),
            PluginSpec(name="int8", load="strangers:Int8", config=Int8Config),
            PluginSpec(name="layer-drop", load="strangers:LayerDrop"),
            PluginSpec(name="models", load="strangers:Models", schemes={"model:mine"}),
        )
    }
