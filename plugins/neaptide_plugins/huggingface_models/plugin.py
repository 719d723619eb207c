"""The plugin that builds the model of a run that names one of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import ConfigError, NoConfig, Plugin, hookimpl
from neaptide.config import structure_options
from neaptide.errors import described

from .config import SPEC

if TYPE_CHECKING:
    from torch import nn

    from neaptide.api.task import ModelSpec


@attrs.define(eq=False)
class HuggingFaceModels(Plugin[NoConfig]):
    """Builds `hf:DIRECTORY` and `hf:ID`."""

    @hookimpl
    def build_model(self, spec: ModelSpec) -> nn.Module | None:
        """Load the model in train mode. It computes its own loss of a batch with `labels`."""
        if spec.scheme != "hf":
            return None
        options = structure_options(SPEC.options["model:*"], spec.options, "model", "options")
        try:
            from .loading import load  # noqa: PLC0415 - it needs transformers
        except ModuleNotFoundError as error:
            msg = f'{described(error)}: pip install "neaptide[hf]" @ model.name'
            raise ConfigError(msg) from error
        return load(spec.name, options, placed=spec.placed)
