"""`train.epochs`: how many updates so many passes over the data are.

`in_updates` is the entry point of the group `neaptide.lengths`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide.errors import ConfigError
from neaptide.run import assembly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec


def in_updates(
    config: RunConfig, ordered: Sequence[PluginSpec], *, own_loop: bool = False
) -> RunConfig:
    """Return `config` with `train.steps` in the place of `train.epochs`.

    An update takes one batch, so an epoch has as many updates as the data have batches. Updates by
    jumps take none: they stand for those of the batches that they save.

    Args:
        config: of the run.
        ordered: the manifests of its plugins.
        own_loop: whether the data of the run are not those of `[data]`.

    Raises:
        ConfigError: `train.steps` is set, too; or nobody can tell how many batches there are.
    """
    train = config.train
    if train.epochs is None:
        return config
    if own_loop:
        msg = (
            f"epochs are passes over the data that [data] names; for your own data set train.steps "
            f"to {train.epochs} * len(data) (got {train.epochs}) @ train.epochs"
        )
        raise ConfigError(msg)
    hooks = assembly.create_plugins(config, ordered, None)
    data = assembly.build_data(config, hooks).train
    try:
        batches = len(data)  # type: ignore[arg-type]  # an iterable may have no length
    except TypeError as error:
        msg = (
            f"{config.data.name!r} does not say how many batches it has; give the data "
            f"`__len__`, or set train.steps (got {train.epochs}) @ train.epochs"
        )
        raise ConfigError(msg) from error
    steps = train.epochs * batches
    return attrs.evolve(config, train=attrs.evolve(train, steps=steps, epochs=None))
