"""Attention with memory that grows linearly with the number of tokens."""

from .attend import attention, ranges_of_documents
from .on_triton.shipping import shipped
from .op import TRITON

__all__ = ["TRITON", "attention", "ranges_of_documents", "shipped"]
