"""What of Trainer's arguments is refused, each in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from neaptide import PluginSpec

_IN_BACKWARD = ("lomo", "adalomo")
"""Optimizers of `optim` that update in the backward; so do those with `layerwise` in the name."""
_SWITCHES = {
    "deepspeed": "NeaptideTrainer runs without DeepSpeed; layer-streaming offloads in its place",
    "fsdp": "NeaptideTrainer runs in one process, without FSDP; remove this",
    "fp16": "fp16 scales losses in a way that plugins do not see; set bf16=True instead",
    "torch_compile": "a compiled model hides its blocks from plugins; remove this",
    "auto_find_batch_size": "a run cannot begin again with smaller batches; set "
    "per_device_train_batch_size instead",
    "activation_offloading": "remove this; the plugin layer-streaming has inputs = 'host'",
}
"""Arguments that must not be set, and the way out."""


def check_arguments(args: Any, accelerator: Any, ordered: Iterable[PluginSpec]) -> None:
    """Raise ConfigError for the first argument of Trainer that a NeaptideTrainer cannot take."""
    for refused in _refused(args, accelerator, ordered):
        raise ConfigError(refused)


def _refused(args: Any, accelerator: Any, ordered: Iterable[PluginSpec]) -> Iterator[str]:
    for name, why in _SWITCHES.items():
        if getattr(args, name, None):
            yield f"{why} @ {name}"
    kind = getattr(accelerator.distributed_type, "value", "NO")
    processes = accelerator.num_processes
    if processes > 1 or kind != "NO":
        yield f"NeaptideTrainer runs in one process (got {processes}, {kind}); use no launcher"
    if args.n_gpu > 1:
        hide = "hide the others with CUDA_VISIBLE_DEVICES"
        yield f"NeaptideTrainer uses one device (got {args.n_gpu}); {hide}"
    yield from _of_plugins(args, {claim: spec.name for spec in ordered for claim in spec.claims})
    optim = str(getattr(args.optim, "value", args.optim))
    if optim in _IN_BACKWARD or "layerwise" in optim:
        why = "updates weights in the backward, before callbacks and clipping"
        yield f"{optim!r} {why}; use another @ optim"


def _of_plugins(args: Any, claims: Mapping[str, str]) -> Iterator[str]:
    """Yield what does not go together with the plugins that have these claims."""
    if (args.bf16_full_eval or args.fp16_full_eval) and "device.placement" in claims:
        yield f"{claims['device.placement']!r} holds the weights; remove this @ bf16_full_eval"
    if args.gradient_checkpointing and "activations" in claims:
        newer = "activation_checkpointing"  # the name since transformers 5
        path = newer if hasattr(args, newer) else "gradient_checkpointing"
        yield f"{claims['activations']!r} recomputes already; set this to False @ {path}"
