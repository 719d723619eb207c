"""Convert the Trainer's `TrainingArguments` from a flat JSON object. Imports no torch."""

from __future__ import annotations

from typing import Any

from neaptide_toolkit.foreign import Converter, Source

SHAPES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}
SIGNS = {
    "learning_rate",
    "lr_scheduler_type",
    "max_grad_norm",
    "max_steps",
    "per_device_train_batch_size",
    "warmup_steps",
}


def convert(source: Source) -> dict[str, Any]:
    """Return the sections of a configuration. Notes explain keys without an exact counterpart."""
    source.note("num_train_epochs", "the length of a run is train.steps; there are no epochs")
    source.note("max_steps", "without it epochs set the length; set train.steps")
    source.note("lr_scheduler_type", f"no counterpart; there are {', '.join(SHAPES)}")
    sections = {
        "train": _train(source),
        "optimizer": _present(lr=source.take("learning_rate", float)),
        "plugins": _plugins(source),
    }
    kept = {name: section for name, section in sections.items() if section}
    return {**_present(seed=source.take("seed", int)), **kept}


def _train(source: Source) -> dict[str, Any]:
    size = source.take("per_device_train_batch_size", int)
    parts = source.look("gradient_accumulation_steps", int) or 1
    if size is not None and source.take("gradient_accumulation_steps", int):
        size *= parts
        text = f"train.batch_size = {size} is an update's batch; gradient-accumulation splits it"
        source.note("gradient_accumulation_steps", text if parts > 1 else "")
    steps = source.look("max_steps", int)
    if steps is not None and steps > 0:
        steps = source.take("max_steps", int)
        source.note("max_steps", "")
    else:
        steps = None
    clip = source.take("max_grad_norm", float)
    return _present(steps=steps, batch_size=size, clip_norm=clip or None)


def _plugins(source: Source) -> dict[str, Any]:
    """Return the tables of plugins that ship with Neaptide; other plugins convert their own."""
    kind = source.look("lr_scheduler_type", str)
    if kind not in SHAPES:
        return {}
    source.take("lr_scheduler_type", str)
    source.note("lr_scheduler_type", "")
    warmup = source.take("warmup_steps", int)
    if kind == "constant" and warmup:
        source.note(
            "warmup_steps", "the Trainer's constant schedule has no warmup and ignores this key"
        )
        warmup = 0
    return {"lr-schedule": {"name": SHAPES[kind], "warmup": warmup or 0}}


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


CONVERTER = Converter(convert, SIGNS)
