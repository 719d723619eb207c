"""The measured gain of a jump, under the name by which other plugins know it."""

from neaptide_toolkit.predictors.jump_gain import JUMP_GAIN, JumpGain

__all__ = ["JUMP_GAIN", "JumpGain"]
