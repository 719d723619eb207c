"""What cannot be together: a Neaptide configuration, and the loop of another library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import ConfigError, RunConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from neaptide import PluginSpec

PLACEMENT = "device.placement"
_OWN = {
    "train.clip_norm": "the gradients would be clipped twice",
    "train.epochs": "the other loop counts the epochs",
    "train.device": "the other library chooses the device",
    "optimizer": "the optimizer is the other library's",
    "eval": "the other loop decides when to evaluate",
}
"""Settings of the core that the other loop would ignore or contradict."""


def check_settings(config: RunConfig) -> None:
    """Raise ConfigError if a setting has no effect, or a second one, in the other loop."""
    default = RunConfig()
    for path, why in _OWN.items():
        here, there = config, default
        for name in path.split("."):
            here, there = getattr(here, name), getattr(there, name)
        if here != there:
            told = f" (got {here!r})" if not attrs.has(type(here)) else ""
            msg = f"remove this setting: {why}{told} @ {path}"
            raise ConfigError(msg)


def check_plugins(ordered: Iterable[PluginSpec], instead: Mapping[str, str]) -> None:
    """Raise ConfigError for a plugin whose name or claim is in `instead`, with the way out."""
    for spec in ordered:
        for name in sorted({spec.name, *spec.claims} & instead.keys()):
            msg = f"{spec.name!r} does not work in this loop; {instead[name]} @ plugins.{spec.name}"
            raise ConfigError(msg)


def is_placed(ordered: Iterable[PluginSpec]) -> bool:
    """Return whether a plugin moves the model to the device."""
    return any(PLACEMENT in spec.claims for spec in ordered)


_AGAIN = {
    "predictor": "it needs the loss of a batch again, which only the user's code computes",
    "pace": "it needs the loss of a batch again, which only the user's code computes",
    "linear.backward": "its measurements need the loss of a batch again",
}
"""Claims of plugins that call a loss function a second time."""


def check_called(config: RunConfig, ordered: Iterable[PluginSpec]) -> None:
    """Raise ConfigError for a plugin that cannot work where the user's code calls the model."""
    for spec in ordered:
        where = f"plugins.{spec.name}"
        for claim in sorted(spec.claims & _AGAIN.keys()):
            msg = f"{spec.name!r} does not work in this loop: {_AGAIN[claim]}; remove it @ {where}"
            raise ConfigError(msg)
        own = config.plugins[spec.name]
        if "saved-tensors" in spec.claims and getattr(own, "check_every", 0):
            msg = f"measurements need the loss of a batch again; set 0 @ {where}.check_every"
            raise ConfigError(msg)
        if "autocast" in spec.claims:
            names = ("dtype", "warmup", "full", "correct", "predict", "evaluate")
            for name in names:
                got = getattr(own, name, None)
                if got in {"fp16", "fp8", "auto"}:
                    msg = f"losses are scaled outside of this loop; set 'bf16' (got {got!r})"
                    raise ConfigError(f"{msg} @ {where}.{name}")
