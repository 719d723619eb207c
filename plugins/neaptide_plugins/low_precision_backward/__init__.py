"""The matrix products of the backward in fp8 or int8, with a meter of what that costs."""

from .config import SPEC

__all__ = ["SPEC"]
