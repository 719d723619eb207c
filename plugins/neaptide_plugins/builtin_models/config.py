"""The plugin's manifest, and one class of options for each built-in model."""

from __future__ import annotations

from typing import Any

import attrs
from attrs.validators import and_, ge, gt, le, lt

from neaptide.plugin import PluginSpec

# The limit is far above useful sizes. Still larger sizes would only run out of memory.
_at_least_1 = and_(ge(1), le(65_536))
_probability = and_(ge(0.0), lt(1.0))


def _init_scale() -> Any:
    return attrs.field(
        default=1.0,
        validator=and_(gt(0.0), le(100.0)),
        metadata={
            "help": "Multiplies the standard deviation of the weights drawn at the start.",
            "sweep": (0.5, 2.0),  # `neaptide compare` tries these factors
        },
    )


@attrs.frozen(kw_only=True)
class ByteGptOptions:
    """Options of `builtin:byte-gpt`."""

    layers: int = attrs.field(
        default=4, validator=and_(ge(1), le(1024)), metadata={"help": "Transformer blocks."}
    )
    width: int = attrs.field(
        default=128,
        validator=_at_least_1,
        metadata={"help": "Features of the residual stream; a multiple of `heads`."},
    )
    heads: int = attrs.field(
        default=4, validator=_at_least_1, metadata={"help": "Attention heads of a block."}
    )
    context: int = attrs.field(
        default=128,
        validator=_at_least_1,
        metadata={
            "help": "Largest number of bytes that the model sees before the byte it predicts."
        },
    )
    dropout: float = attrs.field(
        default=0.0,
        validator=_probability,
        metadata={
            "help": "Share of the embeddings, attention weights and branch outputs that is dropped."
        },
    )
    init_scale: float = _init_scale()

    @heads.validator
    def _heads_divide_width(self, _attribute: attrs.Attribute[int], heads: int) -> None:
        if self.width % heads:
            msg = f"'width' must be a multiple of 'heads' (got width {self.width}, heads {heads})"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class MlpOptions:
    """Options of `builtin:mlp`."""

    inputs: int = attrs.field(
        default=64, validator=_at_least_1, metadata={"help": "Features of one flattened example."}
    )
    width: int = attrs.field(
        default=128, validator=_at_least_1, metadata={"help": "Features of a hidden layer."}
    )
    layers: int = attrs.field(
        default=3,
        validator=and_(ge(1), le(1024)),
        metadata={"help": "Hidden layers, without the output layer."},
    )
    outputs: int = attrs.field(
        default=10, validator=_at_least_1, metadata={"help": "Number of classes."}
    )
    dropout: float = attrs.field(
        default=0.0,
        validator=_probability,
        metadata={"help": "Share of each hidden layer's outputs that is dropped."},
    )
    init_scale: float = _init_scale()


@attrs.frozen(kw_only=True)
class DigitsCnnOptions:
    """Options of `builtin:digits-cnn`."""

    channels: int = attrs.field(
        default=32,
        validator=_at_least_1,
        metadata={"help": "Channels of the first convolution; the later ones have twice as many."},
    )
    classes: int = attrs.field(
        default=10, validator=_at_least_1, metadata={"help": "Number of classes."}
    )
    norm: bool = attrs.field(
        default=True,
        metadata={"help": "Batch normalization, which has buffers, after each convolution."},
    )
    init_scale: float = _init_scale()


SPEC = PluginSpec(
    name="builtin-models",
    load="neaptide_plugins.builtin_models.plugin:BuiltinModels",
    schemes={"model:builtin"},
    summary="Small built-in models: byte-gpt, mlp and digits-cnn.",
    options={
        "model:byte-gpt": ByteGptOptions,
        "model:mlp": MlpOptions,
        "model:digits-cnn": DigitsCnnOptions,
    },
)
