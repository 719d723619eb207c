"""Buffers in files: tensors that need no RAM of their own, read and written past the page cache."""

from typing import TYPE_CHECKING

from neaptide.renamed import missing_in

from .cloning import Cloning, cloning
from .copying import copy, disk_bytes
from .errors import DiskError
from .pretended_file import FilePages, PretendedFile
from .tier_file import Region, TierFile, region_of
from .transfers import Transfers

__all__ = [
    "Cloning",
    "DiskError",
    "FilePages",
    "PretendedFile",
    "Region",
    "TierFile",
    "Transfers",
    "cloning",
    "copy",
    "disk_bytes",
    "region_of",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = missing_in(__name__)
