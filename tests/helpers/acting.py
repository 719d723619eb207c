"""Settings with which a plugin acts on a model as small as those of the tests."""

from __future__ import annotations

from typing import Any

ACTING: dict[str, dict[str, Any]] = {
    "activation-checkpointing": {"interval": 1},
    "activation-compression": {"min_elements": 16, "check_every": 0},
    "adaptive-phases": {"lengths": [2, 4]},
    "delayed-verdict": {"after": 2, "average": 2, "batches": 2, "budget": 1.0},
    "dynamics-linear": {"horizons": [2, 4], "every": 1, "around": 0, "least": 3},
    "dynamics-mlp": {"horizons": [2, 4], "every": 1, "around": 0, "least": 3},
    "dynamics-rssm": {"horizons": [2, 4], "every": 1, "around": 0, "least": 3},
    "int8": {"measure_every": 2},
    "low-precision-backward": {"even_if_slower": True, "check_every": 1000},
    "mixed-precision": {"full": "bf16", "correct": "bf16"},
    "predictor-dmd": {"snapshots": 4, "rank": 2, "sample_every": 1},
    "predictor-drift": {"min_window": 4, "sample_every": 1},
    "predictor-extrapolate": {"samples": 4, "sample_every": 1},
    "predictor-momentum": {"samples": 4, "sample_every": 1},
    "profiler": {"every": 2},
}
