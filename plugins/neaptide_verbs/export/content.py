"""What is exported of a checkpoint: which tensors under which names, and the files beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide.errors import ConfigError
from neaptide.text import one_line
from neaptide_toolkit.export import SINGLE
from neaptide_toolkit.saved_runs.building import HUGGING_FACE, LORA, needing, scheme_of
from neaptide_toolkit.saved_runs.tensors import averages_of, buffers_of, weights_of

from .views import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch

    from neaptide_toolkit.saved_runs.finding import SavedRun
    from neaptide_toolkit.saved_runs.tensors import SavedTensor

    from .views import ReadableTensor, View


def _nothing(directory: Path, dtypes: Sequence[torch.dtype]) -> None:
    del directory, dtypes


@attrs.frozen(eq=False)
class ExportedContent:
    """The tensors to export, and what writes the other files."""

    views: Mapping[str, View]
    """By the names under which they are exported."""
    sources: Mapping[str, ReadableTensor]
    dtypes: Mapping[str, torch.dtype]
    """By the names of the sources. An average has the dtype of its weight."""
    write: Callable[[Path, Sequence[torch.dtype]], None] = _nothing
    """Writes files into a directory; the dtypes are those of the exported weights."""
    kind: str | None = None
    """The class of transformers that loads the model."""
    file: str = SINGLE
    is_adapter: bool = False

    __repr__ = one_line


def content_of(saved: SavedRun, *, average: bool, merge: bool) -> ExportedContent:
    """Return what is exported of a run.

    Raises:
        NeaptideError: the run has no average or no adapters, or they cannot be exported.
    """
    weights, buffers = weights_of(saved.checkpoint), buffers_of(saved.checkpoint)
    dtypes = {name: one.dtype for name, one in {**weights, **buffers}.items()}
    if average:
        weights |= averages_of(saved.checkpoint, weights)
    of_transformers = bool(saved.model["name"]) and scheme_of(saved.model)[0] == HUGGING_FACE
    adapters = LORA in saved.plugins
    if merge and not adapters:
        msg = f"the run has no adapters to merge; it was trained without [plugins.{LORA}] @ --merge"
        raise ConfigError(msg)
    if adapters and not of_transformers:
        msg = f"adapters are exported of models 'hf:...' only @ plugins.{LORA}"
        raise ConfigError(msg)
    if adapters and not merge:
        return _adapter(saved, weights, dtypes)
    if of_transformers:
        return _for_transformers(saved, weights, buffers, dtypes)
    sources = {**weights, **buffers}
    views = {name: whole(name, one.shape) for name, one in sources.items()}
    return ExportedContent(views, sources, dtypes)


def _adapter(
    saved: SavedRun, weights: Mapping[str, SavedTensor], dtypes: Mapping[str, torch.dtype]
) -> ExportedContent:
    with needing(LORA, f"plugins.{LORA}"):
        from neaptide_toolkit.saved_runs.adapters import WEIGHTS  # noqa: PLC0415 - it needs peft

        from .adapters import TunedArchitecture  # noqa: PLC0415 - likewise

    tuned = TunedArchitecture.of(saved)
    kind = type(tuned.model).__name__
    views = tuned.views(weights)

    def write(directory: Path, _dtypes: Sequence[torch.dtype]) -> None:
        tuned.write(directory)

    return ExportedContent(views, weights, dtypes, write, kind, WEIGHTS, is_adapter=True)


def _for_transformers(
    saved: SavedRun,
    weights: Mapping[str, SavedTensor],
    buffers: Mapping[str, SavedTensor],
    dtypes: Mapping[str, torch.dtype],
) -> ExportedContent:
    with needing(HUGGING_FACE):
        from .for_transformers import Architecture  # noqa: PLC0415 - it needs transformers

    architecture = Architecture.of(saved.model)
    found: Mapping[str, ReadableTensor] = weights
    if LORA in saved.plugins:
        with needing(LORA, f"plugins.{LORA}"):
            from .adapters import TunedArchitecture  # noqa: PLC0415 - it needs peft

        found = TunedArchitecture.of(saved).merged(weights)
    views = architecture.views({name: one.shape for name, one in found.items()}, buffers.keys())

    def write(directory: Path, dtypes: Sequence[torch.dtype]) -> None:
        architecture.write(directory, dtypes, saved)

    kind = type(architecture.model).__name__
    sources = {**found, **buffers}
    forms = {**{name: one.dtype for name, one in sources.items()}, **dtypes}
    return ExportedContent(views, sources, forms, write, kind)
