"""Exact repetition of a block's call: its arguments, buffers, random state and autocast."""

from typing import TYPE_CHECKING

from neaptide.renamed import missing_in

from .arguments import (
    Arguments,
    ChangedInPlaceError,
    KeptArgument,
    Output,
    attributes_of,
    copy_structure,
    record,
)
from .blocks import find_blocks
from .call_context import Buffers, BuffersBefore, CallContext, in_autocast
from .parts import KeptParts, parts_of
from .patch import Patch, eager
from .torchs_checkpoint import in_torchs_checkpoint
from .transforms import check_no_transform, other_derivative

__all__ = [
    "Arguments",
    "Buffers",
    "BuffersBefore",
    "CallContext",
    "ChangedInPlaceError",
    "KeptArgument",
    "KeptParts",
    "Output",
    "Patch",
    "attributes_of",
    "check_no_transform",
    "copy_structure",
    "eager",
    "find_blocks",
    "in_autocast",
    "in_torchs_checkpoint",
    "other_derivative",
    "parts_of",
    "record",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = missing_in(__name__)
