"""Ops with an honest reference each, providers that make them fast, and the choice between them.

`KERNELS` is the registry of this process; `neaptide.kernels.define` adds an op to it. The core
has no op of its own.
"""

from .agreement import disagreements, outcome, relative_error
from .op import Op
from .provider import REFERENCE, Provider, Support
from .query import Query, TensorFacts
from .registry import Choice, Explanation, Judged, KernelError, Kernels, KernelWarning, Tuning
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
    "define",
    "disagreements",
    "outcome",
    "relative_error",
]
