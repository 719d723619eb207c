"""torchao's float8 training: linear layers multiply in float8."""

from .config import SPEC

__all__ = ["SPEC"]
