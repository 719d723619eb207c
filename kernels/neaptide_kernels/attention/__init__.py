"""Attention with memory that grows linearly with the number of tokens."""

from .attend import attention, ranges_of_documents
from .op import TRITON
from .tuning import shipped

__all__ = ["TRITON", "attention", "ranges_of_documents", "shipped"]
