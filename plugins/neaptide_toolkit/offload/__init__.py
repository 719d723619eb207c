"""Host buffers for tensors evicted from the device, and lanes (queues) that copy such tensors."""

from typing import TYPE_CHECKING

from neaptide.renamed import missing_in

from .evicted import (
    ALIGNMENT,
    Evictions,
    InRam,
    Moved,
    is_whole,
    places,
    rebind,
)
from .host_lanes import DirectLane, ThreadLane
from .host_memory import PIECE, Slab, lies_in_slab, slab_bytes
from .lanes import Copies, Lane, StreamLane, computed, current, lane_for
from .layout import BufferLayout, Place
from .lending import evictable_state, evictable_weights, lay_out_state, lent_entry
from .pages import mapped_slabs
from .storages import as_bytes, evictable, tensors_in, users
from .tickets import DONE, Listener, Ticket

__all__ = [
    "ALIGNMENT",
    "DONE",
    "PIECE",
    "BufferLayout",
    "Copies",
    "DirectLane",
    "Evictions",
    "InRam",
    "Lane",
    "Listener",
    "Moved",
    "Place",
    "Slab",
    "StreamLane",
    "ThreadLane",
    "Ticket",
    "as_bytes",
    "computed",
    "current",
    "evictable",
    "evictable_state",
    "evictable_weights",
    "is_whole",
    "lane_for",
    "lay_out_state",
    "lent_entry",
    "lies_in_slab",
    "mapped_slabs",
    "places",
    "rebind",
    "slab_bytes",
    "tensors_in",
    "users",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = missing_in(__name__)
