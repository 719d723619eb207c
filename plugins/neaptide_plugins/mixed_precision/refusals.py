"""Checks at the start of a run: settings and hardware with which fp16 or fp8 cannot work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide import ConfigError
from neaptide_toolkit.low_precision import fp8_missing, fp8_slower

if TYPE_CHECKING:
    from neaptide import ParameterStore, Run

    from .config import MixedPrecisionConfig


def check_fp8(setting: str, config: MixedPrecisionConfig, device: torch.device) -> None:
    """Raise ConfigError if fp8 cannot run, or if it is slower and `fp8_even_if_slower` is false.

    The message names `setting`, which is a setting with the value `"fp8"`.
    """
    missing = fp8_missing(device)
    if missing is not None:
        msg = f'"fp8" cannot run here: {missing}; use "auto" @ plugins.mixed-precision.{setting}'
        raise ConfigError(msg)
    reason = fp8_slower(device)
    if reason is not None and not config.fp8_even_if_slower:
        msg = (
            f'"fp8" would be slower than "bf16": {reason}; use "auto", or set '
            f"fp8_even_if_slower = true @ plugins.mixed-precision.{setting}"
        )
        raise ConfigError(msg)


def check_scalable(phase: str, run: Run, store: ParameterStore) -> None:
    """Raise ConfigError if overflows are not detected or gradients cannot be unscaled exactly.

    The message names `phase`, which is a phase that trains in fp16.
    """
    where = f"@ plugins.mixed-precision.{phase}"
    if not run.config.train.check_finite:
        msg = (
            f"fp16 needs train.check_finite = true to notice overflows (got false); set it, or "
            f'use "bf16" {where}'
        )
        raise ConfigError(msg)
    if not store.stores_gradients:
        msg = (
            f"fp16 needs gradients that are stored until the update and unscaled; here blocks are "
            f'updated inside the backward; use "bf16", or update after the backward {where}'
        )
        raise ConfigError(msg)
    for span in store.spans():
        if span.trainable and span.dtype is torch.float16:
            msg = (
                f"fp16 needs weights in float32, which autocast casts to fp16 "
                f"({span.name!r} is float16); call model.float(), or use "
                f'"fp32" to train the model in its own dtype {where}'
            )
            raise ConfigError(msg)
