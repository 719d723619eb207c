"""Random numbers from a seed and a counter, equal on all machines and Python versions."""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache


def draws(seed: int, counter: int, count: int) -> tuple[int, ...]:
    """Return `count` integers, uniform on 0 to 2**64 - 1: the SHAKE-256 of seed and counter."""
    digest = hashlib.shake_256(f"{seed}:{counter}".encode()).digest(8 * count)
    return struct.unpack(f"<{count}Q", digest)


@lru_cache(maxsize=16)
def permutation(seed: int, counter: int, count: int) -> tuple[int, ...]:
    """Return the numbers 0 to `count` - 1 in a random order.

    Seed and counter determine the order.
    """
    keys = draws(seed, counter, count)
    return tuple(sorted(range(count), key=keys.__getitem__))
