"""`neaptide doctor`: what is installed, what the machine has, what is wrong, and the way out."""

from .examine import examine
from .report import Report, Section

__all__ = ["Report", "Section", "examine"]
