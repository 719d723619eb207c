"""Calling a block again exactly: its arguments, buffers, random state, autocast."""

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
from .call_context import Buffers, BuffersBefore, CallContext
from .patch import Patch

__all__ = [
    "Arguments",
    "Buffers",
    "BuffersBefore",
    "CallContext",
    "ChangedInPlaceError",
    "KeptArgument",
    "Output",
    "Patch",
    "attributes_of",
    "copy_structure",
    "find_blocks",
    "record",
]
