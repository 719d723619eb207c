"""Settings that a plan chooses for a machine. Until then, `"auto"` stands for them."""

from .choosable import Choosable, PlanChoice, Tried

__all__ = ["Choosable", "PlanChoice", "Tried"]
