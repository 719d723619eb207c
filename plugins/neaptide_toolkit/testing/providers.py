"""The law (rule) for a provider (an implementation of an op), checked on the op's samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide.errors import suggest
from neaptide_kernels.registry import KERNELS, Provider, copied, disagreements, same_bits

from .failures import Attempt, require, told_as

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVIDER_LAW = "provider-agrees"
"""The name of the law that `check_provider` checks."""
_ANSWERS = "let `supports` and `configs` answer every query of the op without raising"
_RUNS = (
    "return the reference's results for these arguments, in new tensors, and write only to the "
    "arguments that the op mutates"
)


def check_provider(provider: Provider, device: str | torch.device = "cpu") -> int:
    """Check a provider against its op's reference; the provider need not be registered.

    The check runs every sample that the provider supports, contiguous and strided, in every
    config. Results must be within the op's tolerances, and must share no memory with the arguments.
    Only arguments that the op mutates may be written. If the op is deterministic, two calls must
    return equal bits.

    Returns:
        The number of samples that the provider supports.

    Raises:
        ContractError: names the sample and the fault, or states that no sample is supported. If the
            provider raised an exception, the `__cause__` of the ContractError is this exception.
            A KeyboardInterrupt is not converted.
    """
    attempt = Attempt()
    with told_as(PROVIDER_LAW, f"provider {provider.name!r} of {provider.op!r}", attempt):
        return _check(provider, torch.device(device), attempt)


def _check(provider: Provider, device: torch.device, attempt: Attempt) -> int:
    attempt.tries(f"find samples of the op on {device}")
    require(
        provider.op in KERNELS.ops,
        f"no op {provider.op!r}{suggest(provider.op, KERNELS.ops)}",
        "import the module that defines the op, and name the op in Provider(op=…)",
    )
    spec = KERNELS.ops[provider.op].spec
    supported = 0
    for sample in spec.samples(device):
        for kind, arguments in _forms(spec.complete(sample.arguments)):
            where = f"{sample.name}{kind}"
            attempt.tries(f"call `supports` with the sample {where}", _ANSWERS)
            query = KERNELS.query(provider.op, arguments)
            if provider.supports(query) is not True:
                continue
            supported += not kind
            for config in provider.configs(query) or ({},):
                chosen = f", {dict(config)}" if config else ""
                attempt.tries(f"run it and the op's reference on the sample {where}{chosen}", _RUNS)
                for problem in disagreements(spec, provider, arguments, config):
                    require(holds=False, came=problem, change=_RUNS)
                first, second = (provider.run(*copied(arguments), **config) for _ in range(2))
                require(
                    not spec.deterministic or same_bits(first, second),
                    "different bits in the second run",
                    "add in a fixed order, without atomics: the op promises equal bits",
                )
    attempt.tries(f"find samples of the op on {device}")
    require(
        supported > 0,
        "it supports no sample",
        "let `supports` return True for queries it can run, or check it on its own device",
    )
    return supported


def _forms(arguments: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the arguments, and the same values in strided tensors."""
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
