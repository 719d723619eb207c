"""RMSNorm and LayerNorm over the last dimension, and their derivatives."""

from .layer_op import layer_norm
from .providers import TRITON
from .rms_op import rms_norm
from .tuning import shipped

__all__ = ["TRITON", "layer_norm", "rms_norm", "shipped"]
