"""Checks that run before any parameter is moved.

Each check raises a one-line ValueError that states how to solve the problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from neaptide_toolkit.machine.devices import lacks

from .weights.blocks import owned_parameters, parameters_outside

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from .config import LayerStreamingConfig


def number(config: LayerStreamingConfig, name: str) -> int:
    """Return a setting's number; raise ValueError if a plan has to choose it first."""
    value: int | Literal["auto"] = getattr(config, name)
    if value == "auto":
        msg = (
            f"{name} = {value!r} is chosen by a plan, as `neaptide run` makes one; give a number, "
            f"such as the one that `neaptide plan` prints"
        )
        raise ValueError(msg)
    return value


def check_device(device: torch.device) -> None:
    """Raise ValueError if blocks cannot be streamed to a kind of device."""
    reason = None if device.type == "cpu" else lacks(device, "streams", "float64")
    if reason is not None:
        msg = f"blocks cannot be streamed here: {reason}; set train.device = 'cpu', or disable it"
        raise ValueError(msg)


def check_blocks(model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> None:
    """Raise ValueError if there are no blocks, or if no block has parameters."""
    if not blocks:
        msg = (
            f"{type(model).__name__} has no repeated blocks in a ModuleList, Sequential or "
            f"ModuleDict; name them by a pattern such as blocks = 'encoder.*'"
        )
        raise ValueError(msg)
    if not any(True for _, block in blocks for _ in block.parameters()):
        msg = f"the blocks, from {blocks[0][0]!r} on, have no parameters to stream; name others"
        raise ValueError(msg)


def check_modules(blocks: Sequence[tuple[str, nn.Module]], config: LayerStreamingConfig) -> None:
    """Raise ValueError for modules that conflict with the settings."""
    pieces = number(config, "micro_batches")
    if config.resident != "auto" and config.resident > len(blocks):
        there = f"the {len(blocks)} blocks there are"
        msg = f"'resident' must be at most {there} (got {config.resident})"
        raise ValueError(msg)
    for name, block in blocks:
        if block._compiled_call_impl is not None and (
            block._forward_hooks or block._forward_pre_hooks
        ):
            msg = (
                f"{name!r} is compiled in place and has forward hooks, which would run twice; "
                f"use torch.compile(block), or register the hooks on its submodules"
            )
            raise ValueError(msg)
        for path, module in block.named_modules():
            where = f"{name}.{path}" if path else name
            if pieces > 1 and looks_across_samples(module):
                msg = (
                    f"{where!r} is a {type(module).__name__}, whose statistics over the batch "
                    f"would differ with micro_batches = {pieces}; set "
                    f"micro_batches = 1, use a norm over single samples, or exclude {name!r}"
                )
                raise ValueError(msg)
            if uses_cuda_graphs(module):
                msg = (
                    f"{where!r} is compiled with CUDA graphs (mode 'reduce-overhead' or "
                    f"'max-autotune'), which need fixed addresses, but weights move; compile it "
                    f"with mode='default' or 'max-autotune-no-cudagraphs'"
                )
                raise ValueError(msg)


def check_slots(model: nn.Module, blocks: Sequence[tuple[str, nn.Module]], slots: int) -> None:
    """Raise ValueError if a block uses parameters of more blocks than there are slots.

    A slot is a buffer on the device for one block's weights.
    """
    outside = parameters_outside(model, [block for _, block in blocks])
    owner = {
        parameter: index
        for index, own in enumerate(owned_parameters(blocks, outside))
        for parameter in own
    }
    for index, (name, block) in enumerate(blocks):
        needed = {owner[parameter] for parameter in block.parameters() if parameter in owner}
        count = len(needed | {index})
        if count > slots:
            msg = (
                f"max_active_layers must be at least {count} (got {slots}): {name!r} uses "
                f"parameters tied to {count - 1} other blocks"
            )
            raise ValueError(msg)


def looks_across_samples(module: nn.Module) -> bool:
    """Return whether a module's output for a sample depends on other samples of the batch."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return True
    # An instance norm normalizes each sample by itself, but it updates its running statistics
    # from the whole batch.
    return isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats


def uses_cuda_graphs(module: nn.Module) -> bool:
    """Return whether `module` was compiled with CUDA graphs."""
    wrapper: Any = getattr(module, "dynamo_ctx", None)
    asked: Any = getattr(module._compiled_call_impl, "get_compiler_config", dict)
    configs = (getattr(wrapper, "compiler_config", None), asked())
    return any(isinstance(each, dict) and each.get("triton.cudagraphs") for each in configs)
