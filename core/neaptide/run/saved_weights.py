"""The weights of a checkpoint: in its own file, or the frozen ones in a file beside it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from neaptide.checkpoint.base import load_base, save_base
from neaptide.checkpoint.safetensors_header import TensorItem
from neaptide.checkpoint.verify import BASE
from neaptide.errors import WrongCheckpointError

from .rundir import checkpoint_root, is_own

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from neaptide.api.parameters import ParameterStore
    from neaptide.api.spans import Span
    from neaptide.checkpoint import Checkpoint, TensorFile
    from neaptide.config.schema import RunSection


@attrs.frozen(eq=False)
class SavedWeights:
    """The weights in the files of a checkpoint."""

    files: tuple[TensorFile, ...]

    @classmethod
    def of(cls, loaded: Checkpoint, run: RunSection) -> SavedWeights:
        """Find the files. Raises CheckpointError if the frozen weights are missing or damaged."""
        own, sha256 = loaded.tensors("weights"), loaded.manifest.facts.get(BASE)
        if sha256 is None:
            return cls((own,))
        places = [path for path in (loaded.directory.parent, checkpoint_root(run)) if path]
        return cls((own, load_base(str(sha256), places)))

    def file_of(self, name: str) -> TensorFile:
        """Return the file with the weight `name`."""
        return next(file for file in self.files if name in file)

    def check(self, store: ParameterStore) -> None:
        """Raise WrongCheckpointError unless names, dtypes and shapes are those of the model."""
        spans = {span.name: span for span in store.spans()}
        check_names("parameter", {name for file in self.files for name in file}, spans.keys())
        for name, span in spans.items():
            dtype, shape = self.file_of(name).info(name)
            if (dtype, tuple(shape)) != (span.dtype, span.shape):
                msg = (
                    f"parameter {name!r} is {dtype} {tuple(shape)} in the checkpoint but "
                    f"{span.dtype} {span.shape} in the model"
                )
                raise WrongCheckpointError(msg)


def check_names(kind: str, saved: AbstractSet[str], here: AbstractSet[str]) -> None:
    """Raise WrongCheckpointError for a name that is only in the checkpoint or in the model."""
    for name in sorted(saved ^ here):
        where = "the checkpoint" if name in saved else "the model"
        msg = f"{kind} {name!r} is only in {where}; load it into the model it was saved from"
        raise WrongCheckpointError(msg)


def save_frozen(
    directory: Path, store: ParameterStore, run: RunSection, sound: set[Path]
) -> tuple[list[TensorItem], dict[str, str]]:
    """Save the frozen weights beside the checkpoint `directory`, if `run.frozen` says so.

    Return the weights that the checkpoint has to hold, and its facts about the others. See
    `save_base` for `sound`.
    """
    spans = store.spans()
    frozen = [span for span in spans if not span.trainable]
    mostly = 2 * sum(span.bytes for span in frozen) > sum(span.bytes for span in spans)
    own = is_own(directory, run)
    if frozen and (run.frozen == "reference" or (run.frozen == "auto" and mostly and own)):
        sha256 = save_base(directory.parent, _items(store, frozen), sound)
        return _items(store, [span for span in spans if span.trainable]), {BASE: sha256}
    return _items(store, spans), {}


def _items(store: ParameterStore, spans: list[Span]) -> list[TensorItem]:
    return [
        TensorItem(span.name, span.dtype, span.shape, partial(store.loan, span, "read"))
        for span in spans
    ]
