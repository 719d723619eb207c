"""Generated configs: each trains, or ends in an error of ours; torch's own never reaches a user."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neaptide import HybridTrainer, NeaptideError
from neaptide.run.assembly import build_data

NUMBERS = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([2**31, 2**63 - 1, -(2**63), 0.0, -0.0, 1e-9, 0.5, 1.0, 1e30, 1e308]),
    st.booleans(),
    st.sampled_from(["", "fp16", "adam", "auto", "cuda", "x" * 300]),
)
OPTIMIZERS = st.sampled_from(
    [name for name in dir(torch.optim) if name[0].isupper() and name not in ("LBFGS", "Optimizer")]
)
OPTIMIZER_OPTIONS = st.dictionaries(
    st.sampled_from(
        ["betas", "weight_decay", "momentum", "eps", "amsgrad", "capturable", "fused", "foreach"]
    ),
    st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3)),
    max_size=3,
)
TABLES: dict[str, Any] = {
    "model": st.fixed_dictionaries(
        {"name": st.sampled_from(["builtin:mlp", "builtin:digits-cnn", "builtin:byte-gpt"])},
        optional={
            "options": st.dictionaries(
                st.sampled_from(["layers", "width", "inputs", "classes", "outputs", "dropout"]),
                st.one_of(st.integers(0, 80), st.floats(0, 1)),
                max_size=2,
            )
        },
    ),
    "optimizer": st.fixed_dictionaries(
        {"name": OPTIMIZERS}, optional={"lr": NUMBERS, "options": OPTIMIZER_OPTIONS}
    ),
    "train": st.fixed_dictionaries(
        {"steps": st.integers(1, 4), "batch_size": st.integers(1, 5)},
        optional={"clip_norm": NUMBERS, "check_finite": NUMBERS, "max_skipped": NUMBERS},
    ),
    "phases": st.dictionaries(
        st.sampled_from(["warmup", "full", "correct"]),
        st.fixed_dictionaries({"steps": NUMBERS}),
        max_size=2,
    ),
    "plugins": st.dictionaries(
        st.sampled_from(["ema", "gradient-accumulation", "mixed-precision", "predictor-drift"]),
        st.dictionaries(
            st.sampled_from(["decay", "steps", "full", "warmup", "min_window", "sample_every"]),
            NUMBERS,
            max_size=2,
        ),
        max_size=3,
    ),
}


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.fixed_dictionaries(TABLES))
def test_a_generated_config_trains_or_is_refused(config: dict[str, Any]) -> None:
    config["data"] = {"name": "builtin:digits"}
    refused: NeaptideError | None = None
    summary: dict[str, Any] = {}
    try:
        with HybridTrainer.from_config(config) as trainer:
            summary = trainer.fit(build_data(trainer.config, trainer.hooks))
    except NeaptideError as error:
        refused = error
    if refused is not None:
        assert str(refused)
        assert "\n\n" not in str(refused)
    else:
        assert config["train"]["steps"] == summary["steps"]
        assert not math.isinf(summary["val_loss"])
