"""Every installed plugin keeps every law of the contract."""

from __future__ import annotations

from typing import Any

import pytest

from neaptide.hooks.registry import installed_plugins
from neaptide_toolkit.testing import LAWS, check_plugin

# Where a plugin's defaults never act on a model as small as the contract's.
SETTINGS: dict[str, dict[str, Any]] = {
    "activation-checkpointing": {"interval": 2},
    "activation-compression": {"group": 16, "min_elements": 16},
    "adaptive-phases": {"lengths": [2, 4]},
    "delayed-verdict": {"after": 2, "average": 2, "batches": 2, "budget": 1.0},
    "dynamics-linear": {"horizons": [2, 4], "every": 1, "around": 0, "least": 3},
    "dynamics-mlp": {"horizons": [2, 4], "every": 1, "around": 0, "least": 3},
    "dynamics-rssm": {"horizons": [2, 4], "every": 1, "around": 0, "least": 3},
    "fused-layers": {"min_elements": 1},
    "gradient-accumulation": {"steps": 3},
    "low-precision-backward": {
        "min_elements": 1,
        "min_rows": 1,
        "exclude": [],
        "check_every": 5,
        "limit": 0.5,
        "even_if_slower": True,
    },
    "lora": {"merge": True},  # else the model keeps its adapters, which are what was trained
    "predictor-dmd": {"snapshots": 4, "rank": 2, "sample_every": 1},
    "predictor-drift": {"min_window": 4, "sample_every": 1},
    "predictor-extrapolate": {"samples": 4, "sample_every": 1},
    "predictor-momentum": {"samples": 4, "sample_every": 1},
    "residual-correction": {"observe": 1, "entries": 2},
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", sorted(installed_plugins()))
def test_plugin_keeps_law(name: str, law: str) -> None:
    """`check_plugin` passes, one law at a time."""
    check_plugin(name, SETTINGS.get(name), laws=[law])
