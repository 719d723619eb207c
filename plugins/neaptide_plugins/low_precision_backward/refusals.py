"""Checks at the start of a run.

Is the hardware faster in low precision? Which gradients can be measured?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide import ConfigError
from neaptide_toolkit.gradient_error import Sampled, sample
from neaptide_toolkit.low_precision import Chosen, fp8_missing, fp8_slower, int8_slower, untried

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neaptide import ParameterStore

    from .config import LowPrecisionBackwardConfig

_ELEMENTS = 1 << 20
"""Largest number of measured elements, unless every weight has more.

Two float32 copies of the gradients are kept: 8 MiB.
"""


def check_hardware(config: LowPrecisionBackwardConfig, device: torch.device) -> None:
    """Raise ConfigError if the dtype cannot run, or is slower and `even_if_slower` is false."""
    missing = fp8_missing(device) if config.dtype == "fp8" else untried("int8", device)
    if missing is not None:
        other = 'use "int8", or ' if config.dtype == "fp8" and not untried("int8", device) else ""
        msg = (
            f'dtype = "{config.dtype}" cannot run here: {missing}; {other}remove the plugin '
            f"@ plugins.low-precision-backward.dtype"
        )
        raise ConfigError(msg)
    reason = fp8_slower(device) if config.dtype == "fp8" else int8_slower(device)
    if reason is not None and not config.even_if_slower:
        msg = (
            f"dtype = {config.dtype!r} would be slower than a full-precision backward: {reason}; "
            f"remove the plugin, or set even_if_slower = true "
            f"@ plugins.low-precision-backward.dtype"
        )
        raise ConfigError(msg)


def measured(model: nn.Module, store: ParameterStore, chosen: Chosen) -> Sampled:
    """Return the parameters to measure.

    These are chosen weights or, if all chosen weights are streamed from RAM, other parameters.

    Raises:
        ConfigError: no trained parameter stays on the device.
    """
    names = set(chosen.names.values())
    sampled = sample(model, store, elements=_ELEMENTS, wanted=lambda span: span.name in names)
    if names and sampled.missing:
        sampled = sample(model, store, elements=_ELEMENTS)
    if names and sampled.missing:
        msg = (
            f"its extra variance cannot be measured: {sampled.missing}; keep a trained weight on "
            f"the device, or remove the plugin @ plugins.low-precision-backward"
        )
        raise ConfigError(msg)
    return sampled
