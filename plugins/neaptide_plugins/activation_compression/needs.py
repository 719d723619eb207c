"""Which operations may have what they save compressed, and what their backward asks of it.

They are known by the type of their node in the graph. Whatever is not listed keeps what it saves:
losses and log-softmax, which exponentiate or divide by it; sines, of which half a step of a large
angle may be a whole turn; maxima, norms and clamps, which compare it; strangers' functions, of
which nothing is known.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from .config import Family


@attrs.frozen
class Need:
    """What somebody needs of a saved tensor; the fields are for one of the kinds each."""

    kind: str
    low: float = 0.0
    high: float = 0.0


EXACT = Need("exact")
CODES = Need("codes")
"""The values, off by up to half a step."""
SIGNS = Need("signs")
"""Whether a value is more than zero, and no more than that."""
RECTIFIED = Need("rectified")
"""The same, of a tensor without negative values."""
SIGNED = Need("signed")
"""Values off by up to half a step, those above zero above it."""
MASK = Need("mask")
"""All of it; but a tensor of two values, one of them zero, needs one bit for each."""
BETWEEN = "between"
"""The kind that asks whether a value lies between `low` and `high`."""

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
    # Smooth in what they save but at one or two places, with a bounded derivative.
    "activation": frozenset(
        {
            "Elu",
            "Erf",
            "Gelu",
            "Glu",
            "Hardsigmoid",
            "Hardtanh",
            "LeakyRelu",
            "LogSigmoid",
            "Mish",
            "PreluKernel",
            "Relu",
            "Sigmoid",
            "Silu",
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
_OTHERWISE = {"Elu": SIGNED, "LeakyRelu": SIGNS, "PreluKernel": SIGNED, "Relu": RECTIFIED}
"""A value rounded to zero would fall on the other side of the place where they bend."""
_HARDSIGMOID = Need(BETWEEN, -3.0, 3.0)
_WEIGHT_VIEWS = re.compile(
    r"(Alias|Clone|Detach|Expand|Permute|Reshape\w*|Select|Slice|Split\w*|Squeeze|T|ToCopy|"
    r"Transpose|Unflatten|Unsafe\w*|Unsqueeze|View)Backward\d+"
)
_NODE = re.compile(r"(\w+?)Backward\d+")
_LEAST_POWER = 2.0
_ATTENTION_INPUTS = 3


class NodeNeeds:
    """Answers for each node what it needs of a tensor that it saves."""

    def __init__(self, exclude: tuple[Family, ...] = ()) -> None:
        families = (names for family, names in _FAMILIES.items() if family not in exclude)
        self._compressed = frozenset().union(*families)

    def need(self, node: Any, *, output: int | None = None, place: int = 0) -> Need:
        """Return what `node` needs of its `output`-th result, or else of its `place`-th input."""
        found = _NODE.fullmatch(_kind(node))
        name = found[1] if found else ""
        if name not in self._compressed or output:
            return EXACT
        if place >= _ATTENTION_INPUTS and name in _FAMILIES["attention"]:
            return EXACT  # a bias, which may hide some scores among others with a large number
        if name == "Pow":
            return CODES if _is_power(node) else EXACT
        if name == "Hardtanh":
            return Need(BETWEEN, float(node._saved_min_val), float(node._saved_max_val))
        if name == "Hardsigmoid":
            return _HARDSIGMOID
        need = _OTHERWISE.get(name, CODES)
        # A ReLU's own result has no negative values; what else it might save could.
        return SIGNS if need is RECTIFIED and output is None else need

    @staticmethod
    def need_of_constant(node: Any) -> Need:
        """Return what `node` needs of a floating tensor without gradient.

        A product may be dropout's, which on a CPU draws its noise as a factor of zeros and ones.
        """
        return MASK if _kind(node) == "MulBackward0" else EXACT


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
