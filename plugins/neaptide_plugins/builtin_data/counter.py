"""Random numbers as a pure function of (seed, counter), the same on all machines and versions."""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache


def draws(seed: int, counter: int, count: int) -> tuple[int, ...]:
    """Return `count` integers, uniform on 0 to 2**64 - 1, by SHAKE-256 of the seed and counter."""
    digest = hashlib.shake_256(f"{seed}:{counter}".encode()).digest(8 * count)
    return struct.unpack(f"<{count}Q", digest)


@lru_cache(maxsize=16)
def permutation(seed: int, counter: int, count: int) -> tuple[int, ...]:
    """Return the numbers 0 to `count` - 1 in an order drawn from the seed and counter."""
    keys = draws(seed, counter, count)
    return tuple(sorted(range(count), key=keys.__getitem__))
