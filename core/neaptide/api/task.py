"""The model with its loss function, the data, and the constant facts of a run."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.errors import RunDirectoryError
from neaptide.io.folder import Folder
from neaptide.renamed import with_old_names
from neaptide.text import one_line

from .stash import Stash
from .timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import structlog
    import torch
    from torch import nn

    from neaptide.config import RunConfig

    from .steps import Loss, WeighedLoss

    LossFn = Callable[[nn.Module, Any], "torch.Tensor | Loss | WeighedLoss"]


@attrs.frozen(eq=False)
class Task:
    """A model and its loss function; with `loss_fn=None` the loss is `model(**batch).loss`."""

    module: nn.Module
    loss_fn: LossFn | None = None
    __repr__ = one_line


@attrs.frozen(eq=False)
class Data:
    """Training batches in order, and fixed validation batches.

    `train` is any iterable. If it has `state_dict` and `load_state_dict`, checkpoints save the
    state. Otherwise each pass over it must give the same batches, and a resumed run skips the
    batches that were already used.
    """

    train: Iterable[Any]
    validation: Iterable[Any] | None = None
    __repr__ = one_line


@attrs.frozen
class ModelSpec:
    """The table `[model]`; `"builtin:byte-gpt"` has scheme `builtin` and name `byte-gpt`."""

    scheme: str
    name: str
    options: Mapping[str, Any]
    placed: bool = False
    """A plugin moves the weights to the device: their values may be left in files, mapped."""
    __repr__ = one_line


@attrs.frozen
class DataSpec:
    """The table `[data]`, and the settings of the run that a data source needs."""

    scheme: str
    name: str
    options: Mapping[str, Any]
    batch_size: int
    eval_batches: int
    seed: int
    __repr__ = one_line


@with_old_names
@attrs.frozen(eq=False)
class Run:
    """The constant facts of a run. Hooks get these facts as the argument `run`."""

    config: RunConfig = attrs.field(repr=False)
    directory: Path | None
    """The run directory; None if the run writes no files."""
    device: torch.device
    log: structlog.BoundLogger = attrs.field(repr=False)
    """`run.log.info("event.name", key=value)` adds an event; the console shows warnings, too."""
    stash: Stash = attrs.field(factory=Stash, repr=False)
    """Values that plugins store for each other."""
    timeline: Timeline = attrs.field(factory=Timeline, repr=False)
    """Gives a profiler the names of the running parts: `run.timeline.listen(opener)`."""

    __repr__ = one_line

    def plugin_folder(self, name: str) -> Folder | None:
        """Make and open `plugins/<name>/` of the run directory; None without a directory.

        A `Folder` follows no links. Raises RunDirectoryError if it is a link or cannot be made.
        """
        if self.directory is None:
            return None
        try:
            return Folder(self.directory).folder("plugins", make=True).folder(name, make=True)
        except OSError as error:
            path = self.directory / "plugins" / name
            way_out = "move it away or set run.dir elsewhere"
            if error.errno == errno.EMFILE:
                way_out = "raise ulimit -n"
            msg = f"cannot write in {path}: {error.strerror}; {way_out}"
            raise RunDirectoryError(msg) from error
