"""In chosen phases, stores weights on the device only as int8."""

from .config import SPEC

__all__ = ["SPEC"]
