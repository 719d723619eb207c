"""Verifies a stack of plugins on a user's own model: right, or who is guilty of what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide.errors import ConfigError

from .against import compared
from .runs import Runs, TrainerMaker, from_config
from .slicing import cut_for, sliced
from .stacks import prepared
from .verifying import Verifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec

    from .value import Verification

LEAST = 2
"""Updates at least: a run is resumed in its middle."""


def verify(
    config: RunConfig | Mapping[str, Any] | str | Path,
    *,
    steps: int = 8,
    plugins: Iterable[str | PluginSpec] = (),
    against: RunConfig | Mapping[str, Any] | str | Path | None = None,
    make: TrainerMaker = from_config,
    memory: bool = True,
    blocks: int | None = None,
) -> Verification:
    """Train a configuration with its plugins and without, compare, and name the guilty.

    Args:
        config: a TOML, YAML or JSON file, a mapping or a RunConfig. Nothing is written to its run
            directory.
        steps: updates of each run, at least 2.
        plugins: names of plugins, or manifests, that are enabled in addition.
        against: another configuration of the same training, instead of the one without plugins.
        make: `make(config, specs)` returns a new `(trainer, data)` with these plugins, the same
            each time. By default the model, data and optimizer that the configuration names.
        memory: whether peak memory is measured and planned, too.
        blocks: verify a slice of the model with so many of its repeated blocks. By default the
            whole, or a slice if the whole cannot be resident. In `make`, use `fewer_blocks`.

    Raises:
        ConfigError: the configuration is wrong, or there is nothing to compare.
        ModelError: the run without plugins fails, so there is nothing to compare with.
        NeaptideError: a plugin refuses the model.
    """
    if steps < LEAST:
        msg = f"a run is resumed in its middle, so it needs at least {LEAST} updates (got {steps})"
        raise ConfigError(msg)
    if blocks is not None and make is not from_config:
        msg = "blocks are of a configuration's model; in make, take them out by fewer_blocks(model)"
        raise ConfigError(msg)
    runs = Runs(prepared(config, steps, plugins), make)
    other = None if against is None else compared(runs.stack, against, make)
    cut = cut_for(runs.stack, blocks) if make is from_config else None
    with sliced(cut):
        part = None if cut is None else cut.slice
        return Verifier(runs, other, part, memory=memory).verify()
