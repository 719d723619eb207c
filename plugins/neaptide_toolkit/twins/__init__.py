"""What a trainer was given, without values, so that `trainer.verify` can make it anew."""

from .given import Given

__all__ = ["Given"]
