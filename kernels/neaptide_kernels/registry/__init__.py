"""Ops with an honest reference each, providers that make them fast, and the choice between them.

`KERNELS` is the registry of this process; `neaptide_kernels.registry.define` adds an op to it. The core
has no op of its own.
"""

from .agreement import copied, disagreements, first_disagreement, outcome, relative_error, same_bits
from .choosing import Choice, Explanation, Judged
from .faults import KernelError, KernelWarning
from .op import Op
from .provider import REFERENCE, Provider, Support
from .query import Query, TensorFacts
from .registry import Kernels
from .requests import Tuning
from .scope import KernelScope
from .spec import OpSpec, Sample
from .timings import Timing

KERNELS = Kernels()
define = KERNELS.define

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
    "outcome",
    "relative_error",
    "same_bits",
]
