"""Which operations may have what they save compressed, by the name of their node in the graph.

Whatever is not listed keeps what it saves: losses and log-softmax, which exponentiate or divide by
it; maxima, norms and clamps, which compare it; strangers' functions, of which nothing is known.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .config import Family

Form = Literal["exact", "codes", "signs", "mask"]

_FAMILIES: dict[Family, frozenset[str]] = {
    # Linear in each tensor they save.
    "matmul": frozenset(
        {"Addbmm", "Addmm", "Addmv", "Baddbmm", "Bmm", "Dot", "Linear", "Mm", "Mv"}
    ),
    "convolution": frozenset({"Convolution", "ConvolutionOverrideable"}),
    "product": frozenset({"Addcmul", "Mul", "Pow", "Var", "VarMean"}),
    # Linear in their input, given mean and rate, which stay exact.
    "norm": frozenset(
        {
            "CudnnBatchNorm",
            "FusedRmsNorm",
            "MiopenBatchNorm",
            "NativeBatchNorm",
            "NativeGroupNorm",
            "NativeLayerNorm",
        }
    ),
    # Smooth in what they save, with a bounded derivative.
    "activation": frozenset(
        {
            "Cos",
            "Erf",
            "Gelu",
            "Glu",
            "LeakyRelu",
            "LogSigmoid",
            "Mish",
            "Relu",
            "Sigmoid",
            "Silu",
            "Sin",
            "Softplus",
            "Tanh",
        }
    ),
    "softmax": frozenset({"Softmax"}),
    # Their logsumexp, which the backward subtracts from scores, stays exact.
    "attention": frozenset(
        {
            "ScaledDotProductCudnnAttention",
            "ScaledDotProductEfficientAttention",
            "ScaledDotProductFlashAttention",
            "ScaledDotProductFlashAttentionForCpu",
        }
    ),
    # Of their input the backward uses the shape alone.
    "pool": frozenset(
        {
            "AdaptiveAvgPool2D",
            "AdaptiveAvgPool3D",
            "AdaptiveMaxPool2D",
            "AdaptiveMaxPool3D",
            "AvgPool2D",
            "AvgPool3D",
            "MaxPool2DWithIndices",
            "MaxPool3DWithIndices",
        }
    ),
}
_BY_SIGN = {"Relu", "LeakyRelu"}
"""A value rounded to zero would change whether the gradient passes."""
_WEIGHT_VIEWS = re.compile(
    r"(Alias|Clone|Detach|Expand|Permute|Reshape\w*|Select|Slice|Split\w*|Squeeze|T|ToCopy|"
    r"Transpose|Unflatten|Unsafe\w*|Unsqueeze|View)Backward\d+"
)
_NODE = re.compile(r"(\w+?)Backward\d+")
_LEAST_POWER = 2.0


class Ops:
    """Answers for each node in which form a tensor that it saves is held."""

    def __init__(self, exclude: tuple[Family, ...] = ()) -> None:
        families = (names for family, names in _FAMILIES.items() if family not in exclude)
        self._compressed = frozenset().union(*families)

    def form(self, node: Any, output: int | None) -> Form:
        """Return how to hold what `node` saves: its `output`-th result, or an input if None."""
        found = _NODE.fullmatch(_kind(node))
        name = found[1] if found else ""
        if name not in self._compressed or output:
            return "exact"
        if name == "Pow" and not _is_power(node):
            return "exact"
        return "signs" if name in _BY_SIGN else "codes"


def multiplies(node: Any) -> bool:
    """Return whether `node` is a product, which is what dropout draws its noise for on a CPU."""
    return _kind(node) == "MulBackward0"


def never_negative(node: Any) -> bool:
    """Return whether all that `node` returns is zero or more, or NaN."""
    return _kind(node) == "ReluBackward0"


def of_a_leaf(node: Any) -> bool:
    """Return whether a tensor made by `node` is a view, or a cast, of a parameter or an input."""
    while _WEIGHT_VIEWS.fullmatch(_kind(node)):
        node = node.next_functions[0][0]
        if node is None:
            return False
    return _kind(node) == "AccumulateGrad"


def _kind(node: Any) -> str:
    return type(node).__name__  # not `name()`, which a function's own context may have set


def _is_power(node: Any) -> bool:
    # Below 2 the derivative has no bounded slope, below 1 it has a pole at zero.
    exponent = getattr(node, "_saved_exponent", None)
    return isinstance(exponent, int | float) and exponent >= _LEAST_POWER
