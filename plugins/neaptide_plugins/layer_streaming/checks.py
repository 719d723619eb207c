"""What cannot stream, told before anything is moved: ValueError with the way out, one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import LayerStreamingConfig


def check_blocks(model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> None:
    """Raise where there is nothing to stream."""
    if not blocks:
        msg = (
            f"{type(model).__name__} has no repeated blocks in a ModuleList or Sequential; name "
            f"them by a pattern such as blocks = 'encoder.*'"
        )
        raise ValueError(msg)
    if not any(True for _, block in blocks for _ in block.parameters()):
        msg = f"the blocks, from {blocks[0][0]!r} on, have no parameters to stream; name others"
        raise ValueError(msg)


def check_modules(blocks: Sequence[tuple[str, nn.Module]], config: LayerStreamingConfig) -> None:
    """Raise for modules that the settings do not go with."""
    if config.resident > len(blocks):
        there = f"the {len(blocks)} blocks there are"
        msg = f"'resident' must be at most {there} (got {config.resident})"
        raise ValueError(msg)
    for name, block in blocks:
        for path, module in block.named_modules():
            where = f"{name}.{path}" if path else name
            if config.micro_batches > 1 and looks_across_samples(module):
                msg = (
                    f"{where!r} is a {type(module).__name__}, whose statistics are of the whole "
                    f"batch and would differ with micro_batches = {config.micro_batches}; set "
                    f"micro_batches = 1, use a norm within a sample, or exclude {name!r}"
                )
                raise ValueError(msg)
            if uses_cuda_graphs(module):
                msg = (
                    f"{where!r} is compiled with CUDA graphs (mode 'reduce-overhead' or "
                    f"'max-autotune'), which fix the addresses of weights that move; compile it "
                    f"with mode='default' or 'max-autotune-no-cudagraphs'"
                )
                raise ValueError(msg)


def looks_across_samples(module: nn.Module) -> bool:
    """Return whether what a module does to a sample depends on the others in the batch."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return True
    # An instance norm looks within a sample, but its running statistics do not.
    return isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats


def uses_cuda_graphs(module: nn.Module) -> bool:
    """Return whether torch.compile was asked to capture CUDA graphs of `module`."""
    compiled: Any = getattr(module, "_compiled_call_impl", None)
    for candidate in (compiled, getattr(module, "dynamo_ctx", None)):
        backend = candidate
        for _ in range(6):  # wrapped in as many layers by torch's versions
            if backend is None:
                break
            config = getattr(backend, "config", None)
            if isinstance(config, dict) and config.get("triton.cudagraphs"):
                return True
            backend = (
                getattr(backend, "callback", None)
                or getattr(backend, "_torchdynamo_orig_backend", None)
                or getattr(backend, "_torchdynamo_orig_callable", None)
                or getattr(backend, "compiler_fn", None)
                or getattr(backend, "_torch_compile_backend", None)
            )
    return False
