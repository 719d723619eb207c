"""What a run works on: the model with its loss, the data, and the frozen facts about the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.renamed import missing_in

from .stash import Stash
from .timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import structlog
    import torch
    from torch import nn

    from neaptide.config import RunConfig

    from .steps import Loss

    LossFn = Callable[[nn.Module, Any], "torch.Tensor | Loss"]


@attrs.frozen(eq=False)
class Task:
    """A model and the loss it is trained on; `loss_fn` None means `model(**batch).loss`."""

    module: nn.Module
    loss_fn: LossFn | None = None


@attrs.frozen(eq=False)
class Data:
    """Batches to train on, in order, and fixed ones to validate on.

    `train` may be any iterable. With `state_dict` and `load_state_dict` it resumes by itself;
    otherwise it must give the same batches each time it is iterated, and resume skips ahead.
    """

    train: Iterable[Any]
    validation: Iterable[Any] | None = None


@attrs.frozen
class ModelSpec:
    """What `[model]` says, without the scheme: `"byte-gpt"` of `"builtin:byte-gpt"`."""

    scheme: str
    name: str
    options: Mapping[str, Any]


@attrs.frozen
class DataSpec:
    """What `[data]` says, with what every source needs to know about the run."""

    scheme: str
    name: str
    options: Mapping[str, Any]
    batch_size: int
    eval_batches: int
    seed: int


@attrs.frozen(eq=False)
class Run:
    """Frozen facts about the run, handed to the hooks that ask for `run`."""

    config: RunConfig
    directory: Path | None
    """The run directory; None when nothing is written."""
    device: torch.device
    log: structlog.BoundLogger
    """`run.log.info("event.name", key=value)` adds to events.jsonl; warnings reach the console."""
    stash: Stash = attrs.field(factory=Stash)
    """Values plugins leave for each other."""
    timeline: Timeline = attrs.field(factory=Timeline)
    """What runs, by name, for a timeline: `run.timeline.listen(opener)`."""

    if not TYPE_CHECKING:  # where it would hide what is missing
        __getattr__ = missing_in(f"{__name__}.Run", AttributeError)

    def plugin_directory(self, name: str) -> Path | None:
        """Return (and make) `plugins/<name>/` of the run directory; None without one."""
        if self.directory is None:
            return None
        path = self.directory / "plugins" / name
        path.mkdir(parents=True, exist_ok=True)
        return path
