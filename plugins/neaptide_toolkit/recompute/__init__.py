"""Calling a block again exactly: its arguments, buffers, random state, autocast."""

from .arguments import (
    Arguments,
    ChangedInPlaceError,
    Kept,
    Output,
    attributes_of,
    copy_structure,
    record,
)
from .blocks import find_blocks
from .call_context import Buffers, BuffersBefore, Surroundings
from .patch import Patch

__all__ = [
    "Arguments",
    "Buffers",
    "BuffersBefore",
    "ChangedInPlaceError",
    "Kept",
    "Output",
    "Patch",
    "Surroundings",
    "attributes_of",
    "copy_structure",
    "find_blocks",
    "record",
]
