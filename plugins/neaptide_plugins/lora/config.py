"""Settings and manifest of `lora`."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import and_, ge, in_, lt

from neaptide.config import field
from neaptide.plugin import PluginSpec

ALL_LINEAR = "all-linear"

Base = Literal["as-is", "bf16", "int8", "nf4"]


@attrs.frozen(kw_only=True)
class LoraSettings:
    """`[plugins.lora]`."""

    r: int = field(8, validator=ge(1), help="rank of the adapters")
    alpha: int = field(
        16,
        validator=ge(1),
        help="the output of an adapter is multiplied by alpha / r, or with `rslora` by "
        "alpha / sqrt(r)",
    )
    targets: tuple[str, ...] | Literal["all-linear"] = field(
        ALL_LINEAR,
        help="linear layers that get an adapter: names, or last parts of names such as `q_proj`; "
        "`all-linear` is every linear layer except the output head of a language model",
    )
    dropout: float = field(
        0.0, validator=and_(ge(0.0), lt(1.0)), help="dropout of the input of each adapter"
    )
    dora: bool = field(default=False, help="DoRA: also train the magnitude of each weight's rows")
    rslora: bool = field(default=False, help="divide alpha by sqrt(r) instead of r")
    base: Base = field(
        "as-is",
        validator=in_(("as-is", "bf16", "int8", "nf4")),
        help="how the frozen weights of linear layers are held: `as-is`, `bf16`, `int8` (a scale "
        "for each output) or `nf4` (4 bits, QLoRA)",
    )
    merge: bool = field(
        default=False,
        help="at the end of the run, add the adapters to the weights and remove them; only with "
        "base `as-is`",
    )

    @targets.validator
    def _is_named(self, attribute: attrs.Attribute[object], value: tuple[str, ...] | str) -> None:
        if value != ALL_LINEAR and (isinstance(value, str) or not value or not all(value)):
            msg = f"{attribute.name!r} must be 'all-linear' or names of layers (got {value!r})"
            raise ValueError(msg)

    @merge.validator
    def _can_merge(self, attribute: attrs.Attribute[bool], value: bool) -> None:  # noqa: FBT001 - attrs calls it
        if value and self.base != "as-is":
            msg = f"{attribute.name!r} needs base = 'as-is' (got {value}, and base = {self.base!r})"
            raise ValueError(msg)


SPEC = PluginSpec(
    name="lora",
    load="neaptide_plugins.lora.plugin:Lora",
    config=LoraSettings,
    summary="Trains small adapters beside frozen linear layers: LoRA, DoRA and QLoRA.",
    claims={"linear.weight"},
    before={
        "activation-checkpointing",
        "layer-streaming",
        "low-precision-backward",
        "mixed-precision",
        "optimizer-offload",
    },
    numerics="changes-training",
)
