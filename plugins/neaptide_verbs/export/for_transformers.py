"""How transformers names and stores the weights of a model, and the files that it needs beside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs
import torch
from transformers import AutoConfig

try:
    from transformers.core_model_loading import revert_weight_conversion
except ImportError:  # before transformers 5 models were stored as they compute
    revert_weight_conversion = None

from neaptide.errors import ConfigError, WrongCheckpointError, described
from neaptide.run.saved_weights import check_names
from neaptide_toolkit.saved_runs.building import build

from .small_files import copy_files
from .views import View, copies_as_views, outlined, storage, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from neaptide_toolkit.saved_runs.finding import SavedRun


@attrs.frozen(eq=False)
class Architecture:
    """A model of transformers without values."""

    model: Any
    base: Path
    """The directory with the files of the model before it was trained."""
    changed: frozenset[str]
    """The values of `config.json` that the run replaced."""

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Build the model of the table `[model]` from its `config.json`.

        Raises:
            ConfigError: the files are not on this machine, or the model needs their Python code.
        """
        if table["options"].get("trust_remote_code"):
            msg = (
                "a model with Python code of its own cannot be exported by the command; use "
                "neaptide_toolkit.export.export_model @ model.options.trust_remote_code"
            )
            raise ConfigError(msg)
        with outlined():
            model: Any = build(table, download=False)
        changed = table["options"].get("config", {})
        return cls(model, Path(model.config.name_or_path), frozenset(changed))

    def views(
        self, weights: Mapping[str, tuple[int, ...]], saved: AbstractSet[str]
    ) -> dict[str, View]:
        """Return what is exported, by name.

        Args:
            weights: the shapes of the saved weights.
            saved: the names of the saved buffers.

        Raises:
            WrongCheckpointError: the weights are not those of this model.
        """
        own = {name: tuple(one.shape) for name, one in self.model.named_parameters()}
        check_names("parameter", weights.keys(), own.keys())
        for name, shape in weights.items():
            if own[name] != shape:
                msg = (
                    f"parameter {name!r} is {list(shape)} in the checkpoint but "
                    f"{list(own[name])} in {self.base}; restore the files of the model"
                )
                raise WrongCheckpointError(msg)
        kept = self.model.state_dict().keys()
        buffers = {
            name: tuple(one.shape) for name, one in self.model.named_buffers() if name in kept
        }
        if lost := sorted(buffers.keys() - saved):
            msg = (
                f"buffer {lost[0]!r} is only in the model; export with the version of transformers "
                f"that built it for the training"
            )
            raise WrongCheckpointError(msg)
        ignored = {*(getattr(self.model, "_keys_to_ignore_on_save", None) or ())}
        shapes = {**weights, **buffers}
        return as_stored(
            self.model, {name: shape for name, shape in shapes.items() if name not in ignored}
        )

    def write(self, directory: Path, dtypes: Sequence[torch.dtype], saved: SavedRun) -> None:
        """Write `config.json`, and copy the files of the generation and of the tokenizer."""
        config = self.model.config
        config.architectures = [type(self.model).__name__]
        if dtypes:
            widest = dtypes[0]
            for one in dtypes[1:]:
                widest = torch.promote_types(widest, one)
            config.dtype = str(widest).removeprefix("torch.")
        if hasattr(config, "use_cache") and "use_cache" not in self.changed:
            # It was off in training only.
            config.use_cache = AutoConfig.from_pretrained(self.base).use_cache
        try:
            config.save_pretrained(directory)
        except (ValueError, TypeError) as error:  # transformers checks the values
            msg = f"config.json cannot be written: {described(error)} @ model.options.config"
            raise ConfigError(msg) from error
        copy_files(self.base, saved, directory)


def as_stored(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, View]:
    """Return the tensors that `save_pretrained` would write, as parts of those of the model.

    transformers stores some models in another form than it computes with, such as each expert of a
    layer on its own. If a part cannot be told, all tensors keep their names, which transformers
    loads, too.
    """
    outlines = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    plain = {name: whole(name, shape) for name, shape in shapes.items()}
    if revert_weight_conversion is None:
        return plain
    names = {storage(one): name for name, one in outlines.items()}
    try:
        with copies_as_views():
            stored = revert_weight_conversion(model, dict(outlines))
    except Exception as error:  # whatever a conversion raises
        msg = f"transformers cannot store {type(model).__name__}: {described(error)} @ model.name"
        raise ConfigError(msg) from error
    views = {}
    for name, one in stored.items():
        source = names.get(storage(one))
        if source is None:
            return plain
        views[name] = View(source, tuple(one.shape), one.stride(), int(one.storage_offset()))
    return views
