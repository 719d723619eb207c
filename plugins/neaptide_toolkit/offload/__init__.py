"""Memory a tier below the device, and the lanes on which copies to and from it run."""

from .aside import Aside, is_whole, movable, users
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
from .layout import ALIGNMENT, Layout, Place

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
    "movable",
    "users",
]
