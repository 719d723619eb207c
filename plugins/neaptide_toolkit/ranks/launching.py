"""`neaptide run` on several processes: the entry point of the group `neaptide.launchers`.

Imports torch only if there are several processes.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.checkpoint.recovery import old_of
from neaptide.config import unstructure
from neaptide.errors import ConfigError, WrongCheckpointError, suggest
from neaptide.hooks.registry import installed_plugins

from . import slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec

_PLACE = "RANK", "WORLD_SIZE", slurm.STARTED
_TIMEOUT = 1800.0
"""Longest wait for another process, in seconds, if the plugin has no setting `timeout`."""
PROCESSES = "processes"
"""The claim of the plugin that divides a run among processes."""


def place() -> tuple[int, int]:
    """Return the number of this process and how many there are, as torchrun or SLURM tell them.

    Raises:
        ConfigError: the variables RANK and WORLD_SIZE make no sense.
    """
    os.environ.update(slurm.variables(os.environ))  # torch reads them, too
    found = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (found[0].isdecimal() and found[1].isdecimal() and int(found[0]) < int(found[1])):
        msg = (
            f"the variables RANK and WORLD_SIZE must be whole numbers, RANK below WORLD_SIZE (got "
            f"{found[0]!r} and {found[1]!r}); start with torchrun or srun, or unset both"
        )
        raise ConfigError(msg)
    return int(found[0]), int(found[1])


def alone() -> dict[str, str]:
    """Return the environment for a process that is in no group with others."""
    return {name: value for name, value in os.environ.items() if name not in _PLACE}


def tells() -> bool:
    """Return whether this process prints and writes files: only the first of a run does."""
    return place()[0] == 0


def trained(
    train: Callable[..., Any],
    config: RunConfig,
    ordered: Sequence[PluginSpec],
    resume: str | None,
    **given: Any,
) -> Any:
    """Train `config` in this process, with the others of its run if there are any.

    Args:
        train: `train(config, resume=, allow_changes=, style=)`.
        config: the configuration; all processes must have the same.
        ordered: the manifests of its plugins.
        resume: a checkpoint, `"auto"` or None.
        given: the other arguments of `train`.

    Returns:
        What `train` returned; None in all processes but the first.

    Raises:
        ConfigError: no plugin divides the run, a batch has too few samples, or another process has
            another configuration.
        SystemExit: the first process tells the error.
    """
    rank, size = place()
    if size == 1:
        return train(config, resume=resume, **given)
    try:
        divider = divider_of(config, ordered, size)
    except ConfigError as error:  # all have it, and none has imported torch
        if rank:
            raise SystemExit(error.exit_code) from None
        raise

    from .joining import joined, newest  # noqa: PLC0415 - imports torch
    from .logs import kept  # noqa: PLC0415 - only other processes write them

    seconds = getattr(config.plugins[divider], "timeout", _TIMEOUT)
    facts = {**_flat(unstructure(config)), "--resume": resume}
    with joined(rank, size, facts, seconds, config.train.device) as tell:
        resume = tell(newest(config, resume) if rank == 0 else None)
        config = _placed(config)
        if rank == 0:
            return train(config, resume=resume, **given)
        logs = config.run.dir if getattr(config.plugins[divider], "logs", False) else None
        with nullcontext() if logs is None else kept(Path(logs) / "ranks" / f"{rank}.log"):
            train(_silent(config, ordered), resume=resume, **{**given, **_SILENT})
        return None


_SILENT = {"style": "quiet", "allow_changes": True}
"""The first process compares the checkpoint's config and plugins with the run's."""


def started(
    processes: int,
    config: RunConfig,
    ordered: Sequence[PluginSpec],
    files: Sequence[Path],
    options: Mapping[str, Any],
) -> int:
    """Run `neaptide run` with `files` and `options` in new processes; return the exit code.

    Args:
        processes: how many.
        config: the run's configuration.
        ordered: the manifests of the run's plugins.
        files: the configuration files.
        options: the values of the other options by name: a text, a list of texts, or whether a
            switch is set.

    Raises:
        ConfigError: the number of processes is wrong, no plugin divides the run, or a batch has too
            few samples.
    """
    if processes < 1 or place()[1] > 1:
        why = "is at least 1" if processes < 1 else "is for a run that torchrun has not started"
        msg = f"--nproc {why} (got {processes})"
        raise ConfigError(msg)
    if processes > 1:
        divider_of(config, ordered, processes)
    given = [
        f"--{name}" if one is True else f"--{name}={one}"
        for name, value in options.items()
        for one in (value if isinstance(value, list) else [value])
        if one not in (None, False)
    ]

    from .starting import start  # noqa: PLC0415 - imports torch

    return start(processes, ["run", *map(str, files), *given])


def divider_of(config: RunConfig, ordered: Sequence[PluginSpec], size: int) -> str:
    """Return the name of the plugin that divides a run among `size` processes.

    Raises:
        ConfigError: there is none, or a batch has too few samples.
    """
    for spec in ordered:
        if PROCESSES in spec.claims:
            _check_batch(config, size)
            return spec.name
    usable = installed_plugins().usable().values()
    tables = [f"add [plugins.{spec.name}]" for spec in usable if PROCESSES in spec.claims]
    msg = (
        f"no enabled plugin divides the run among {size} processes; "
        f"{(tables or ['install a plugin that does'])[0]}, or start one process @ plugins"
    )
    raise ConfigError(msg)


def _check_batch(config: RunConfig, size: int) -> None:
    """Raise ConfigError if a batch has fewer samples than there are processes."""
    if config.train.batch_size < size:
        msg = (
            f"train.batch_size = {config.train.batch_size} is divided among the processes, so it "
            f"must be at least their number (got {size} processes) @ train.batch_size"
        )
        raise ConfigError(msg)


def _silent(config: RunConfig, ordered: Sequence[PluginSpec]) -> RunConfig:
    """Return the configuration of a process that writes no files and has no observers."""
    observers = {spec.name for spec in ordered if spec.observer}
    plugins = {name: one for name, one in config.plugins.items() if name not in observers}
    run = attrs.evolve(config.run, dir=None, checkpoint_dir=None)
    return attrs.evolve(config, run=run, plugins=plugins)


def _placed(config: RunConfig) -> RunConfig:
    """Return the configuration of a process that trains on its own device, which it names.

    The first device keeps its name: new threads begin with it, and the first process saves it.
    """
    from .placing import own_device  # noqa: PLC0415 - imports torch

    device = own_device(config.train.device)
    if not device.index:
        return config
    return attrs.evolve(config, train=attrs.evolve(config.train, device=str(device)))


def _flat(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {path: json.loads(json.dumps(tree, default=str))}
    return {
        key: value
        for name, part in tree.items()
        for key, value in _flat(part, f"{path}.{name}".removeprefix(".")).items()
    }


def check_resume(resume: str | None, config: RunConfig, *, allow_changes: bool) -> None:
    """Raise an error if the option `--resume` cannot be followed."""
    if resume is None:
        if allow_changes:
            msg = "--allow-changes is for resuming; give --resume auto or --resume CHECKPOINT too"
            raise ConfigError(msg)
        return
    # After a crash the checkpoint may exist only under its `.old-` name. `load` renames it back.
    places = (Path(resume), old_of(Path(resume)))
    # `os.path.exists`, because `Path.exists` raises if a name is too long or access is denied.
    if resume != "auto" and not any(os.path.exists(place) for place in places):  # noqa: PTH110 - see above
        msg = (
            f"there is no checkpoint {resume!r} to resume from{suggest(resume, ['auto'])}; "
            f"see neaptide ckpt list {config.run.dir}"
        )
        raise WrongCheckpointError(msg)
