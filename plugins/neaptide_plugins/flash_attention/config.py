"""Settings and manifest of `flash-attention`."""

from __future__ import annotations

import attrs

from neaptide.config import field
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class FlashAttentionConfig:
    """`[plugins.flash-attention]`."""

    provider: str = field(
        "auto",
        help="provider of the ops `attention` and `attention_backward`, such as `triton` or "
        "`cudnn`; the run stops at a call that it does not support. `auto` chooses a provider for "
        "each call",
    )


SPEC = PluginSpec(
    name="flash-attention",
    load="neaptide_plugins.flash_attention.plugin:FlashAttention",
    config=FlashAttentionConfig,
    summary="Computes attention without a matrix of scores: memory grows linearly with the tokens.",
    numerics="tolerance",
    rtol=1e-3,
)
