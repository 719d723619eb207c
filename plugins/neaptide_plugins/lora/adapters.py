"""Adds peft's adapters to a model, takes them away, and saves them as peft does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from peft import LoraConfig, LoraModel
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import save
from transformers.pytorch_utils import Conv1D

from neaptide.io.folder import Folder
from neaptide_toolkit.saved_runs.adapters import (
    CONFIG,
    NAME,
    WEIGHTS,
    adapter_config,
    adapter_tensors,
)

from .fast_paths import without_fast_paths
from .held_weights import hold
from .targets import all_linear, chosen, is_tied, linear_layers, own_weight

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from neaptide import ParameterStore

    from .config import LoraSettings


@attrs.frozen(eq=False)
class AddedAdapters:
    """A model with adapters, and what it takes to remove them."""

    model: nn.Module
    tuner: LoraModel
    parameters: tuple[nn.Parameter, ...]
    """The parameters that train."""
    trained_before: tuple[nn.Parameter, ...]
    """The model's own parameters that were not frozen before, and that it still has."""
    held: int
    """How many weights are held in another form than before."""
    restore: Callable[[], None]
    """Turns torch's fast paths on again."""

    def files(self, store: ParameterStore) -> dict[str, bytes]:
        """Return the files of the adapter's directory, by name. The module may have no weights."""
        weights = {}
        for span in store.spans():
            if span.trainable:
                with store.loan(span, "read") as weight:
                    weights[span.name] = weight.detach().clone()
        return adapter_files(self.model, weights)

    def remove(self, *, merge: bool) -> None:
        """Give the model its own layers and trainable parameters back.

        Args:
            merge: whether the adapters are added to the weights first.
        """
        if merge:
            self.tuner.merge_and_unload()
        else:
            self.tuner.unload()
        self.restore()
        vars(self.model).pop("peft_config", None)
        for parameter in self.trained_before:
            parameter.requires_grad_(True)


def add_adapters(model: nn.Module, settings: LoraSettings) -> AddedAdapters:
    """Freeze `model` and add an adapter to each target, in place.

    The values of the new adapters come from torch's generator of the CPU.

    Raises:
        ValueError: the model has adapters, or a target matches nothing. The model is unchanged.
    """
    if any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        msg = (
            f"{type(model).__name__} has adapters of peft already; build it without them, or add "
            f"them to its weights with peft's merge_and_unload()"
        )
        raise ValueError(msg)
    names = chosen(model, settings.targets)
    layers = linear_layers(model)
    targets = {name: layers[name] for name in names}
    tied = [name for name in names if is_tied(model, own_weight(targets[name]))]
    if settings.merge and tied:
        msg = (
            f"'merge' would also change what other modules compute with the weight of {tied[0]!r}, "
            f"which they share; leave it out of targets, or set merge = false"
        )
        raise ValueError(msg)
    trained = tuple(one for one in model.parameters() if one.requires_grad)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        use_dora=settings.dora,
        use_rslora=settings.rslora,
        target_modules=names,
        fan_in_fan_out=all(isinstance(layer, Conv1D) for layer in targets.values()),
    )
    held = hold(model, {**all_linear(model), **targets}, settings.base)
    if held:  # nothing may keep the weights that were replaced
        kept = set(model.parameters())
        trained = tuple(one for one in trained if one in kept)
        del layers, targets
    with warnings.catch_warnings():  # where only some layers are transposed, peft sets it for each
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to")
        tuner = LoraModel(model, config, NAME)
    adapters = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    restore = without_fast_paths(model, adapters)
    added = tuple(one for one in model.parameters() if one.requires_grad)
    return AddedAdapters(model, tuner, added, trained, held, restore)


def save_adapter(model: nn.Module, directory: str | Path) -> None:
    """Write the adapter of `model` as peft does, for `PeftModel.from_pretrained(base, directory)`.

    Each file is replaced at once.

    Raises:
        ValueError: the model has no adapter.
    """
    files = adapter_files(model)
    folder = Folder(Path(directory), make=True)
    for name, content in files.items():
        folder.replace(name, content)


def adapter_files(
    model: nn.Module, weights: dict[str, torch.Tensor] | None = None
) -> dict[str, bytes]:
    """Return the files of an adapter's directory, by name.

    Args:
        model: has the adapter.
        weights: see `adapter_tensors`.

    Raises:
        ValueError: the model has no adapter.
    """
    config = adapter_config(model, getattr(model, "name_or_path", None) or None)
    tensors = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in adapter_tensors(model, weights).items()
    }
    return {WEIGHTS: save(tensors, metadata={"format": "pt"}), CONFIG: config}
