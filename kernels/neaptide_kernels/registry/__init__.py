"""Stores ops and their providers, and chooses a provider for each call.

An op is an operation, and a provider is an implementation of an op. The provider `reference`
defines the result; other providers are faster. `KERNELS` is the registry of this process, and
`define` adds an op to `KERNELS`. A run finds the registry by an entry point of the group
`neaptide.kernels`.
"""

from .agreement import copied, disagreements, first_disagreement, outcome, relative_error, same_bits
from .choosing import Choice, Explanation, Judged
from .faults import KernelError, KernelWarning
from .op import Op
from .provider import REFERENCE, Provider, Support
from .query import Query, TensorFacts, per_element
from .registry import Kernels
from .requests import Tuning
from .scope import KernelScope
from .spec import OpSpec, Sample, takes
from .timings import Timing

KERNELS = Kernels()
define = KERNELS.define


def open_scope() -> KernelScope:
    """Return an object that adds providers to `KERNELS`, and removes them when it is closed."""
    return KernelScope(KERNELS)


__all__ = [
    "KERNELS",
    "REFERENCE",
    "Choice",
    "Explanation",
    "Judged",
    "KernelError",
    "KernelScope",
    "KernelWarning",
    "Kernels",
    "Op",
    "OpSpec",
    "Provider",
    "Query",
    "Sample",
    "Support",
    "TensorFacts",
    "Timing",
    "Tuning",
    "copied",
    "define",
    "disagreements",
    "first_disagreement",
    "open_scope",
    "outcome",
    "per_element",
    "relative_error",
    "same_bits",
    "takes",
]
