"""Adapters of the plugin `lora`: as peft saves them, or merged into the weights."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import attrs
import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from neaptide.errors import ConfigError
from neaptide.run.saved_weights import check_names
from neaptide.text import one_line
from neaptide_toolkit.saved_runs.adapters import CONFIG, adapter_config, adapter_tensors
from neaptide_toolkit.saved_runs.building import LORA, build

from .views import outlined, storage, whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from neaptide_toolkit.saved_runs.finding import SavedRun
    from neaptide_toolkit.saved_runs.tensors import SavedTensor

    from .views import View

_BASE = "base_layer."


@attrs.frozen(eq=False)
class TunedArchitecture:
    """A model with adapters, without values."""

    model: Any
    base: str
    """The form in which the frozen weights were held."""
    named: str
    """The directory or id of the base model."""

    @classmethod
    def of(cls, saved: SavedRun) -> Self:
        """Build the model of a run with the run's adapters."""
        settings = saved.plugins[LORA]
        with outlined():
            # Held in fewer bits, weights have other names, but their adapters have not.
            model = build(saved.model, {**settings, "base": "as-is"}, download=False)
        named = str(saved.model["name"]).partition(":")[2]
        return cls(model, str(settings["base"]), named)

    def views(self, saved: Mapping[str, SavedTensor]) -> dict[str, View]:
        """Return the tensors of an adapter's file, by the names that peft gives them."""
        names = {storage(one): name for name, one in self.model.named_parameters()}
        found = adapter_tensors(self.model)
        sources = {name: names[storage(one)] for name, one in found.items()}
        check_names("parameter", {one for one in saved if "lora_" in one}, {*sources.values()})
        return {name: whole(source, saved[source].shape) for name, source in sources.items()}

    def write(self, directory: Path) -> None:
        """Write the configuration of the adapter."""
        (directory / CONFIG).write_bytes(adapter_config(self.model, self.named))

    def merged(self, saved: Mapping[str, SavedTensor]) -> dict[str, SavedTensor | MergedTensor]:
        """Return the weights of the model without adapters, by name; the adapters are in them.

        Raises:
            ConfigError: the frozen weights were held in fewer bits.
        """
        if self.base != "as-is":
            msg = (
                f"weights held as {self.base} take up no adapter; export the adapter without "
                f"--merge @ plugins.{LORA}.base"
            )
            raise ConfigError(msg)
        own = {name for name, _ in self.model.named_parameters()}
        check_names("parameter", saved.keys(), own)
        layers: dict[str, Any] = {
            name: module
            for name, module in self.model.named_modules()
            if isinstance(module, BaseTunerLayer)
        }
        found: dict[str, SavedTensor | MergedTensor] = {}
        for name, one in saved.items():
            layer = next((path for path in layers if name.startswith(f"{path}.")), None)
            if layer is None:
                found[name] = one
            elif name == f"{layer}.{_BASE}weight":
                parts = {key: saved[f"{layer}.{key}"] for key in layers[layer].state_dict()}
                found[f"{layer}.weight"] = MergedTensor(layers[layer], parts)
            elif name.startswith(f"{layer}.{_BASE}"):
                found[name.replace(f"{layer}.{_BASE}", f"{layer}.", 1)] = one
        return found


@attrs.frozen(eq=False)
class MergedTensor:
    """The weight of a layer, with its adapter added by peft when it is read."""

    layer: Any
    """The layer of peft, without values."""
    parts: Mapping[str, SavedTensor]
    """Its saved tensors, by the names in the layer."""

    __repr__ = one_line

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the frozen weight."""
        return self.parts[f"{_BASE}weight"].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the frozen weight."""
        return self.parts[f"{_BASE}weight"].shape

    def read(self) -> torch.Tensor:
        """Return the frozen weight and what the adapter adds to it, in CPU memory."""
        layer = copy.deepcopy(self.layer)
        forms = {name: one.dtype for name, one in layer.state_dict().items()}
        values = {name: one.read().to(forms[name]) for name, one in self.parts.items()}
        layer.load_state_dict(values, assign=True)
        layer.merge()
        weight: torch.Tensor = layer.get_base_layer().weight.detach()
        return weight

    def read_part(self, start: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return contiguous elements, from element `start` on, as a tensor of `shape`."""
        count = torch.Size(shape).numel()
        return self.read().contiguous().reshape(-1)[start : start + count].reshape(shape)
