"""Places in the sections of a checkpoint, by what they hold. The first key names the section."""

from __future__ import annotations

from typing import Any

Place = tuple[Any, ...]

SECTIONS = "buffers config data extra gradients optimizer plugins rng training".split()  # noqa: SIM905 - a list of words

COUNTERS: tuple[Place, ...] = (
    *(("training", name) for name in ("step", "batches", "predicted", "jumps", "skipped_in_a_row")),
    ("training", "schedule", "done"),
    ("training", "schedule", "uncorrected"),
    ("training", "history", "updates"),
    ("training", "accumulation", "pieces"),
    ("training", "pending", "step"),
    ("data", "used"),
    ("plugins", "ema", "updates"),
    ("plugins", "predictor-drift", "updates"),
    *(
        ("plugins", "predictor-drift", "window", name)
        for name in ("samples", "every", "began", "position")
    ),
    ("plugins", "divergence-monitor", "step"),
    *(("plugins", "divergence-monitor", "watch", name) for name in ("seen", "since", "findings")),
    ("plugins", "gradient-accumulation", "calls"),
)
FRACTIONS: tuple[Place, ...] = (
    ("training", "accumulation", "reference"),
    ("training", "accumulation", "weight"),
    ("training", "accumulation", "loss"),
    ("training", "pending", "loss"),
    ("training", "pending", "gradient_norm"),
    *(("optimizer", "param_groups", 0, name) for name in ("lr", "eps", "weight_decay")),
    ("optimizer", "param_groups", 0, "initial_lr"),
)
TEXTS: tuple[Place, ...] = (
    ("training", "schedule", "phase"),
    ("training", "pending", "phase"),
)
MAPPINGS: tuple[Place, ...] = (
    *(("training", name) for name in ("schedule", "history", "accumulation")),
    ("optimizer", "state"),
    ("optimizer", "state", 0),
    ("optimizer", "param_groups", 0),
    *(("plugins", name) for name in ("ema", "predictor-drift", "divergence-monitor")),
    ("plugins", "gradient-accumulation"),
    ("plugins", "profiler"),
    ("plugins", "ema", "averages"),
    ("plugins", "predictor-drift", "window"),
    ("plugins", "predictor-drift", "window", "rows"),
    ("plugins", "divergence-monitor", "watch"),
    ("plugins", "divergence-monitor", "rollback"),
    ("data", "started_with"),
)
LISTS: tuple[Place, ...] = (
    ("training", "history", "losses"),
    ("training", "history", "gradient_norms"),
    ("optimizer", "param_groups"),
    ("optimizer", "param_groups", 0, "params"),
    ("optimizer", "param_groups", 0, "betas"),
    ("plugins", "divergence-monitor", "alarm"),
    ("rng", "python"),
    ("rng", "numpy"),
    ("data", "started_with", "python"),
    ("data", "started_with", "numpy"),
)
OTHERS: tuple[Place, ...] = (
    ("training", "pending"),
    ("training", "pending", "applied"),
    *(("optimizer", "param_groups", 0, name) for name in ("amsgrad", "maximize", "foreach")),
    ("plugins", "predictor-drift", "proposed"),
    ("plugins", "divergence-monitor", "deferred"),
    ("rng", "python", 0),
    ("rng", "python", 1),
    ("rng", "numpy", 0),
    ("rng", "numpy", 2),
)
TENSORS: tuple[Place, ...] = (
    *(("weights", name) for name in ("blocks.0.up.weight", "blocks.1.norm.bias", "head.weight")),
    *(("gradients", name) for name in ("blocks.0.up.weight", "head.bias")),
    ("buffers", "blocks.0.norm.running_mean"),
    ("buffers", "blocks.1.norm.num_batches_tracked"),
    ("optimizer", "state", 0, "step"),
    ("optimizer", "state", 0, "exp_avg"),
    ("optimizer", "state", 3, "exp_avg"),
    ("optimizer", "state", 28, "exp_avg_sq"),
    ("plugins", "ema", "averages", "blocks.0.up.weight"),
    ("plugins", "ema", "averages", "head.bias"),
    ("rng", "torch"),
    ("rng", "numpy", 1),
    ("data", "started_with", "torch"),
)
