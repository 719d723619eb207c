"""Commands in several processes that train one model together, as torchrun would start them."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import warm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def variables(rank: int, size: int, port: int, nodes: int = 1) -> dict[str, str]:
    """Return the variables that tell a process its place, as if there were so many nodes."""
    local = size // nodes
    place = {"RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    place |= {"LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(one) for name, one in place.items()}}


def free_port() -> int:
    """Return a port of this machine that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def run_together(
    size: int,
    arguments: Sequence[str],
    *,
    cwd: Path,
    others: Mapping[int, Sequence[str]] | None = None,
    timeout: float = 120,
    nodes: int = 1,
) -> list[warm.Done]:
    """Run `python ARGUMENTS` in `size` processes; return what each printed, by rank.

    `others` has the arguments of those processes that get other ones.
    """
    port = free_port()

    def one(rank: int) -> warm.Done:
        env = os.environ | variables(rank, size, port, nodes)
        given = (others or {}).get(rank, arguments)
        return warm.run(given, cwd=cwd, env=env, timeout=timeout)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))
