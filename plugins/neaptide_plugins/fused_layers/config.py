"""Settings and manifest of `fused-layers`."""

from __future__ import annotations

from typing import Any, Literal

import attrs
from attrs.validators import ge

from neaptide.config import field
from neaptide.plugin import PluginSpec

Kind = Literal["rms_norm", "layer_norm", "gated_mlp", "rope"]
KINDS: tuple[Kind, ...] = ("rms_norm", "layer_norm", "gated_mlp", "rope")


def _some(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if not value or len(set(value)) != len(value):
        msg = f"{attribute.name!r} must name kinds of layers, each once (got {list(value)})"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class FusedLayersConfig:
    """`[plugins.fused-layers]`."""

    layers: tuple[Kind, ...] = field(
        KINDS,
        validator=_some,
        help="kinds of layers to replace: `rms_norm`, `layer_norm`, `gated_mlp`, `rope`",
    )
    min_elements: int = field(
        1 << 18,
        validator=ge(1),
        help="a call with fewer elements runs the model's own code, which is faster for small "
        "tensors",
    )


SPEC = PluginSpec(
    name="fused-layers",
    load="neaptide_plugins.fused_layers.plugin:FusedLayers",
    config=FusedLayersConfig,
    summary="Computes norms, gated MLPs and rotary embeddings by fused ops, which keep fewer "
    "activations.",
    claims={"layers.forward"},
    numerics="tolerance",
    rtol=1e-5,
)
