"""Matrix products of the backward in fp8 or int8, with a measurement of the added variance."""

from .config import SPEC

__all__ = ["SPEC"]
