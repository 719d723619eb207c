"""Fits a schedule to the length of a run. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide.errors import ConfigError

from .config import DECAY, SPEC, is_shape
from .curve import Curve, updates_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec

    from .config import LrScheduleConfig


def curve_of(config: LrScheduleConfig, steps: int) -> Curve:
    """Return the curve of a run of `steps` updates; ConfigError if its parts are longer."""
    warmup, is_wsd = updates_of(config.warmup, steps), config.name == "wsd"
    share = DECAY if config.decay is None else config.decay
    decay = max(1, round(share * steps)) if is_wsd else 0
    if is_wsd and config.warmup < 1 and config.warmup + share <= 1:
        decay = min(decay, steps - warmup)  # both may have been rounded up
    if warmup + decay > steps:
        parts = f"a warmup of {warmup} updates" + (f" and a decay of {decay}" if is_wsd else "")
        msg = (
            f"{parts} do not fit into train.steps = {steps} (got {config.warmup:g}) "
            f"@ plugins.{SPEC.name}.warmup"
        )
        raise ConfigError(msg)
    name: Any = config.name
    return Curve(name=name, steps=steps, warmup=warmup, decay=decay, floor=config.floor)


def advise(config: RunConfig, ordered: Iterable[PluginSpec]) -> Iterator[str]:
    """Yield nothing; raise the ConfigError that a run of this length would end with."""
    own = config.plugins.get(SPEC.name) if SPEC in ordered else None
    if own is not None and is_shape(own.name) and config.train.epochs is None:
        curve_of(own, config.train.steps)
    yield from ()
