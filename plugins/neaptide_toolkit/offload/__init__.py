"""Memory a tier below the device, and the lanes on which copies to and from it run."""

from neaptide.run.resident.aside import Aside, is_whole, movable, users
from neaptide.run.resident.layout import ALIGNMENT, Layout, Place
from neaptide.run.resident.pages import lies_in_slab, mapped_slabs, slab_bytes

from .host_memory import PIECE, Slab
from .lanes import (
    DONE,
    Lane,
    Listener,
    StreamLane,
    ThreadLane,
    Ticket,
    computed,
    current,
    lane_for,
)

__all__ = [
    "ALIGNMENT",
    "DONE",
    "PIECE",
    "Aside",
    "Lane",
    "Layout",
    "Listener",
    "Place",
    "Slab",
    "StreamLane",
    "ThreadLane",
    "Ticket",
    "computed",
    "current",
    "is_whole",
    "lane_for",
    "lies_in_slab",
    "mapped_slabs",
    "movable",
    "slab_bytes",
    "users",
]
