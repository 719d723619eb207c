"""The laws a provider of an op has to keep, checked on the op's own samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.registry import KERNELS, Provider, copied, disagreements, same_bits

from .subject import ContractError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide_kernels.registry import OpSpec


def check_provider(provider: Provider, device: str | torch.device = "cpu") -> int:
    """Check a provider against its op's reference; it need not be added anywhere.

    On every sample it supports, as it is and with strided tensors: results within the op's
    tolerances in every config, nothing written but what the op mutates, no memory shared with the
    arguments, the same bits twice where the op is deterministic.

    Returns:
        How many samples it supports.

    Raises:
        ContractError: naming the sample and the first law it breaks, or that it supports none.
    """
    spec = KERNELS.ops[provider.op].spec
    supported = 0
    for sample in spec.samples(torch.device(device)):
        for kind, arguments in _forms(spec.complete(sample.arguments)):
            query = KERNELS.query(provider.op, arguments)
            if provider.supports(query) is not True:
                continue
            supported += not kind
            for config in provider.configs(query) or ({},):
                for problem in _problems(spec, provider, arguments, config):
                    where = f"{sample.name}{kind}" + (f", {dict(config)}" if config else "")
                    msg = f"provider {provider.name!r} of {provider.op!r} on {where}: {problem}"
                    raise ContractError(msg)
    if not supported:
        msg = f"provider {provider.name!r} of {provider.op!r} supports no sample on {device}"
        raise ContractError(msg)
    return supported


def _problems(
    spec: OpSpec, provider: Provider, arguments: Sequence[Any], config: Any
) -> Iterator[str]:
    yield from disagreements(spec, provider, arguments, config)
    first, second = (provider.run(*copied(arguments), **config) for _ in range(2))
    if spec.deterministic and not same_bits(first, second):
        yield "it gives other bits the second time"


def _forms(arguments: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the arguments, and the same numbers in tensors with gaps."""
    yield "", arguments
    yield ", strided", [_strided(each) for each in arguments]


def _strided(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.dim():
            return value
        wide = value.new_zeros((*value.shape[:-1], 2 * value.shape[-1]))
        view = wide[..., ::2]
        return view.copy_(value)
    return [_strided(each) for each in value] if isinstance(value, list | tuple) else value
