"""Lines about settings that are valid, but probably not meant."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import attrs

from neaptide.config import RunConfig, unstructure
from neaptide.config.layers import ENV_PREFIX
from neaptide.config.tables import leaves
from neaptide.hooks.enabling import PREDICTOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neaptide.plugin import PluginSpec


def on_lengths(config: RunConfig, ordered: Iterable[PluginSpec]) -> Iterator[str]:
    """Yield a line for each setting that has no effect in a run of `train.steps` updates."""
    steps, phases = config.train.steps, config.phases
    if config.train.epochs is not None:
        return  # the data say how many updates these are
    predicts = any(PREDICTOR in spec.claims for spec in ordered)
    warmup = phases.warmup_updates(predicts=predicts)
    if warmup >= steps:
        yield (
            f"all {steps} updates are in Warmup, which lasts {warmup} (train.steps = {steps}) "
            f"@ phases.warmup.steps"
        )
    elif predicts and warmup + phases.full.steps >= steps:
        yield (
            f"no update is predicted: Warmup and Full last {warmup} + {phases.full.steps} updates "
            f"(train.steps = {steps}) @ phases.full.steps"
        )


def on_variables(config: RunConfig, ordered: Iterable[PluginSpec]) -> Iterator[str]:
    """Yield a line for each environment variable that lacks the underscores of a setting."""
    del config, ordered
    known = {
        "_".join(map(str, path)): "__".join(map(str, path))
        for path in leaves(unstructure(RunConfig()))
    }
    sections = {field.name for field in attrs.fields(RunConfig)}
    prefix = ENV_PREFIX.removesuffix("_")
    for name in sorted(os.environ):
        keys = name.removeprefix(prefix).strip("_").lower()
        if name.startswith(prefix) and not name.startswith(ENV_PREFIX):
            found = re.sub("_+", "_", keys)
            if found in known or found.partition("_")[0] in sections:
                example = f"{ENV_PREFIX}{known.get(found, 'train__steps').upper()}"
                yield f"{name} sets nothing: keys are joined by two underscores, as in {example}"
