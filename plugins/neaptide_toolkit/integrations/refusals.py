"""What cannot be together: a Neaptide configuration, and the loop of another library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, RunConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch import nn

    from neaptide import HybridTrainer, PluginSpec

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
        own: Any = config.plugins[spec.name]
        if "saved-tensors" in spec.claims and getattr(own, "check_every", 0) != 0:
            msg = f"measurements need the loss of a batch again; set 0 @ {where}.check_every"
            raise ConfigError(msg)
        for name in ("dtype", "warmup", "full", "predict", "correct", "evaluate"):
            got = getattr(own, name, None) if "autocast" in spec.claims else None
            if got not in {None, "fp32", "bf16"}:
                msg = f"a loss would have to be scaled in the user's code; set 'bf16' (got {got!r})"
                full = f"{msg} @ {where}.{name}"
                raise ConfigError(full)


def unsteppable(hybrid: HybridTrainer, *, given: bool, called: bool) -> str | None:
    """Return why the steps of a run cannot be made in pieces, or None.

    `given` tells whether the other loop has an optimizer, `called` whether the user's code calls
    the model.
    """
    if not hybrid.store.stores_gradients:
        return (
            "gradients must be held until the update, which this loop makes after its "
            'callbacks; set update = "after_backward" @ plugins.layer-streaming.update'
        )
    if given and not hybrid.hooks.left_to_core("configure_optimizer"):
        return (
            "a plugin builds an optimizer, but here the loop has its own; remove the plugin, and "
            "make its optimizer in the loop, such as neaptide_plugins.adam8bit.optimizer.Adam8bit"
        )
    if called and hybrid.hooks.implements("before_forward"):
        return "a plugin acts in before_forward, which comes too late here; remove the plugin"
    return None


def check_owned(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError if a trained parameter is in no group: nobody would drop its gradients."""
    own = {id(one) for group in optimizer.param_groups for one in group["params"]}
    for name, one in model.named_parameters():
        if one.requires_grad and id(one) not in own:
            msg = (
                f"gradients are clipped together, and {name!r} is in no group of the optimizer; "
                f"add it, or freeze it by requires_grad_(False)"
            )
            raise ConfigError(msg)
