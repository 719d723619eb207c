"""Lists operations whose saved tensors may be compressed, and what their backwards need.

An operation is identified by the type of its graph node. The saved tensors of all other operations
stay exact, because a rounded value could make the gradient wrong. The backwards of losses and
log-softmax exponentiate a saved tensor or divide by it. For a sine, half a quantization step of a
large angle may be a full turn. The backwards of maxima, norms and clamps compare values. The
backward of a custom function is unknown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from .config import Family


@attrs.frozen
class Need:
    """What a backward needs to know about a saved tensor. Only `BETWEEN` uses `low` and `high`."""

    kind: str
    low: float = 0.0
    high: float = 0.0


EXACT = Need("exact")
CODES = Need("codes")
"""The values, each with an error of up to half a quantization step."""
SIGNS = Need("signs")
"""Only whether a value is positive."""
RECTIFIED = Need("rectified")
"""Like `SIGNS`, for a tensor without negative values."""
SIGNED = Need("signed")
"""Like `CODES`, but positive values stay positive."""
MASK = Need("mask")
"""The exact values of a bool tensor, or of a tensor with zeros and one other value."""
BETWEEN = "between"
"""The `kind` of a need: only whether a value is between `low` and `high`."""

_FAMILIES: dict[Family, frozenset[str]] = {
    # The gradients are linear in each saved tensor.
    "matmul": frozenset(
        {"Addbmm", "Addmm", "Addmv", "Baddbmm", "Bmm", "Dot", "Linear", "Mm", "Mv"}
    ),
    "convolution": frozenset({"Convolution", "ConvolutionOverrideable"}),
    "product": frozenset({"Addcmul", "Mul", "Pow", "Var", "VarMean"}),
    # The normalised values are linear in the saved input. Mean and inverse standard deviation stay
    # exact.
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
    # The slope is a function of the saved tensor with a bounded derivative, except at one or two
    # points.
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
    # The saved logsumexp stays exact, because the backward subtracts it from the scores.
    "attention": frozenset(
        {
            "ScaledDotProductCudnnAttention",
            "ScaledDotProductEfficientAttention",
            "ScaledDotProductFlashAttention",
            "ScaledDotProductFlashAttentionForCpu",
            "ScaledDotProductFusedAttentionOverrideable",  # of XPU and of devices of others
        }
    ),
    # The backward uses only the shape of the input.
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
"""Operations whose slope jumps at zero: a positive value must not be rounded to zero."""
_HARDSIGMOID = Need(BETWEEN, -3.0, 3.0)
_WEIGHT_VIEWS = re.compile(
    r"(Alias|Clone|Detach|Expand|Permute|Reshape\w*|Select|Slice|Split\w*|Squeeze|T|ToCopy|"
    r"Transpose|Unflatten|Unsafe\w*|Unsqueeze|View)Backward\d+"
)
_NODE = re.compile(r"(\w+?)Backward\d+")
_LEAST_POWER = 2.0
_ATTENTION_INPUTS = 3


class NodeNeeds:
    """Returns the `Need` of a node for a tensor that the node saves."""

    def __init__(self, exclude: tuple[Family, ...] = ()) -> None:
        families = (names for family, names in _FAMILIES.items() if family not in exclude)
        self._compressed = frozenset().union(*families)

    def need(self, node: Any, *, output: int | None = None, place: int = 0) -> Need:
        """Return the need of `node` for its result number `output`.

        If `output` is None, return the need for input number `place`.
        """
        found = _NODE.fullmatch(_kind(node))
        name = found[1] if found else ""
        if name not in self._compressed or output:
            return EXACT
        if place >= _ATTENTION_INPUTS and name in _FAMILIES["attention"]:
            return EXACT  # an attention mask, whose large values make the scales too coarse
        if name == "Pow":
            return CODES if _is_power(node) else EXACT
        if name == "Hardtanh":
            return Need(BETWEEN, float(node._saved_min_val), float(node._saved_max_val))
        if name == "Hardsigmoid":
            return _HARDSIGMOID
        need = _OTHERWISE.get(name, CODES)
        # The result of a ReLU has no negative values, but its input may have some.
        return SIGNS if need is RECTIFIED and output is None else need

    @staticmethod
    def need_of_constant(node: Any) -> Need:
        """Return the need of `node` for a floating tensor that requires no gradient.

        On a CPU, dropout multiplies its input by such a tensor, which contains zeros and one other
        value.
        """
        return MASK if _kind(node) == "MulBackward0" else EXACT


def of_a_leaf(node: Any) -> bool:
    """Return whether the result of `node` is a view or a cast of a parameter or an input."""
    while _WEIGHT_VIEWS.fullmatch(_kind(node)):
        node = node.next_functions[0][0]
        if node is None:
            return False
    return _kind(node) == "AccumulateGrad"


def _kind(node: Any) -> str:
    return type(node).__name__  # a custom function may override `name()`


def _is_power(node: Any) -> bool:
    # If the exponent is below 2, the second derivative is unbounded; if it is below 1, the first
    # derivative is unbounded, too.
    exponent = getattr(node, "_saved_exponent", None)
    return isinstance(exponent, int | float) and exponent >= _LEAST_POWER
