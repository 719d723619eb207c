"""The tensors of a saved model, read one at a time: weights, their average, and buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.config.schema import RunSection
from neaptide.errors import ConfigError, WrongCheckpointError
from neaptide.run.saved_weights import SavedWeights
from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide.checkpoint import Checkpoint, TensorFile

EMA = "ema"
"""The plugin whose state is an average of the weights."""


@attrs.frozen(eq=False)
class SavedTensor:
    """A tensor in a file of a checkpoint."""

    file: TensorFile
    key: str
    """Its name in the file."""

    __repr__ = one_line

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in the file."""
        return self.file.info(self.key)[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the file."""
        return self.file.info(self.key)[1]

    def read(self) -> torch.Tensor:
        """Return the tensor, in CPU memory."""
        return self.file[self.key]

    def read_part(self, start: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return contiguous elements, from element `start` on, as a tensor of `shape`."""
        part = torch.empty(shape, dtype=self.dtype)
        if part.numel():
            raw = part.reshape(-1).view(torch.uint8)
            self.file.read_into(self.key, raw.numpy().data, start * self.dtype.itemsize)
        return part


def weights_of(checkpoint: Checkpoint) -> dict[str, SavedTensor]:
    """Return the weights by name. Frozen ones may be in a file beside the checkpoint."""
    files = SavedWeights.of(checkpoint, RunSection()).files
    return {name: SavedTensor(file, name) for file in files for name in file}


def averages_of(
    checkpoint: Checkpoint, weights: Mapping[str, SavedTensor]
) -> dict[str, SavedTensor]:
    """Return the averages of the plugin `ema` by the names of their weights.

    Raises:
        ConfigError: the run did not keep an average.
        WrongCheckpointError: an average is not of the shape of its weight.
    """
    found = _tensors(checkpoint, "plugins", f"/{EMA}/averages/")
    if not found:
        msg = (
            f"{checkpoint.directory} holds no average of the weights; train with "
            f"[plugins.{EMA}], or leave out --average"
        )
        raise ConfigError(msg)
    for name, average in found.items():
        if name not in weights or weights[name].shape != average.shape:
            msg = f"the average {name!r:.100} has no weight of its shape; export the weights"
            raise WrongCheckpointError(msg)
    return found


def buffers_of(checkpoint: Checkpoint) -> dict[str, SavedTensor]:
    """Return all buffers by name, also those that a module's state dict leaves out."""
    return _tensors(checkpoint, "buffers", "/")


def _tensors(checkpoint: Checkpoint, section: str, prefix: str) -> dict[str, SavedTensor]:
    """Return the tensors of a section whose JSON Pointer begins with `prefix`, by the rest."""
    if f"{section}.safetensors" not in checkpoint.manifest.files:
        return {}
    file = checkpoint.tensors(section)
    return {
        key.removeprefix(prefix).replace("~1", "/").replace("~0", "~"): SavedTensor(file, key)
        for key in file
        if key.startswith(prefix)
    }
