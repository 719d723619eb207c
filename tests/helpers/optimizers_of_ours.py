"""The optimizers of ours, for tests that hold for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_plugins.adafactor.optimizer import Adafactor
from neaptide_plugins.adam8bit.optimizer import Adam8bit
from neaptide_plugins.adam_mini.optimizer import AdamMini
from neaptide_plugins.ademamix.optimizer import AdEMAMix
from neaptide_plugins.apollo.optimizer import Apollo
from neaptide_plugins.lion.optimizer import Lion
from neaptide_plugins.lion8bit.optimizer import Lion8bit
from neaptide_plugins.muon.optimizer import Muon

if TYPE_CHECKING:
    from collections.abc import Callable


@attrs.frozen
class Kind:
    """An optimizer, options under which it lowers a small loss, and its dtypes."""

    make: Callable[..., torch.optim.Optimizer]
    options: dict[str, Any]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    empty: dict[str, Any] = attrs.field(factory=dict)


CODED = torch.float32, torch.bfloat16
KINDS = {
    "adafactor": Kind(Adafactor, {"lr": 0.05, "weight_decay": 0.01}),
    "adam-mini": Kind(AdamMini, {"lr": 0.01, "weight_decay": 0.01}),
    "adam8bit": Kind(Adam8bit, {"lr": 0.01, "weight_decay": 0.01}, CODED),
    "ademamix": Kind(AdEMAMix, {"lr": 0.01, "weight_decay": 0.01}),
    "apollo": Kind(Apollo, {"lr": 0.01, "rank": 2, "weight_decay": 0.01}),
    "lion": Kind(Lion, {"lr": 0.01, "weight_decay": 0.01}),
    "lion8bit": Kind(Lion8bit, {"lr": 0.01, "weight_decay": 0.01}, CODED),
    "muon": Kind(Muon, {"lr": 0.01, "weight_decay": 0.01}, empty={"kind": "adamw"}),
    "muon, for the rest": Kind(Muon, {"lr": 0.01, "kind": "adamw", "weight_decay": 0.01}),
}
"""By name; a parameter of no size needs the options of `empty`."""
