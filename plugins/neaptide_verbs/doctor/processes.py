"""Several processes: what this torch offers them, and the link between those of a run."""

from __future__ import annotations

import socket
import statistics
import time
from typing import TYPE_CHECKING

import attrs

from neaptide.api.records import Finding
from neaptide.io.units import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TENSOR = 32 << 20
_TIMES = 5
_TIMEOUT = 120.0
"""Longest wait for another process, in seconds."""
_LOOPBACK = ("127.", "::1")


@attrs.frozen
class Link:
    """What the processes of a run have measured together.

    Attributes:
        hosts: the host of each process, by rank.
        seconds: of an `all_reduce` of one number.
        rate: bytes a second of an `all_reduce` of 32 MiB: the bytes that each process sends and
            receives, `2 (n - 1) / n` of the tensor, over its time.
    """

    hosts: tuple[str, ...]
    seconds: float
    rate: float


def measured(rank: int, count: int) -> Link:
    """Meet the other processes, and measure the link; ConfigError if their versions differ."""
    import torch  # noqa: PLC0415 - the doctor examines first whether torch can be imported
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    from neaptide_toolkit.ranks.joining import joined  # noqa: PLC0415 - likewise

    with joined(rank, count, {}, _TIMEOUT):
        hosts: list[str] = [""] * count
        dist.all_gather_object(hosts, socket.gethostname())
        number, tensor = (torch.zeros(n, dtype=torch.uint8, device="cpu") for n in (1, _TENSOR))
        seconds = _timed(lambda: dist.all_reduce(number), 10 * _TIMES)
        rate = 2 * (count - 1) / count * _TENSOR / _timed(lambda: dist.all_reduce(tensor), _TIMES)
        return Link(tuple(hosts), seconds, rate)


def _timed(action: Callable[[], object], times: int) -> float:
    """Return the median of the seconds that `action` takes, after one call that does not count."""
    action()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def findings(link: Link | None) -> Iterator[Finding]:
    """Yield the findings on the libraries between processes, on this host's name, and the link."""
    import torch.distributed as dist  # noqa: PLC0415 - as above

    if not dist.is_available() or not dist.is_gloo_available():
        advice = "install a torch built with USE_DISTRIBUTED=1: pytorch.org"
        yield Finding("note", "gloo", "not in this torch: a run has one process", advice)
        return
    yield Finding("ok", "gloo", "in this torch: a run can have several processes")
    nccl = "in this torch" if dist.is_nccl_available() else "not in this torch"
    yield Finding("ok", "NCCL", f"{nccl}; processes on CUDA devices exchange tensors by it")
    yield _host()
    if link is None:
        return
    hosts = [f"{host} ({link.hosts.count(host)})" for host in dict.fromkeys(link.hosts)]
    detail = f"{len(link.hosts)} with equal versions, on {', '.join(hosts)}"
    yield Finding("ok", "processes", detail)
    detail = f"{size(int(link.rate))}/s for tensors, {link.seconds * 1e6:.0f} us for a number"
    yield Finding("ok", "link", detail)


def _host() -> Finding:
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None)[0][4][0]
    except OSError:
        detail = f"{name!r} has no address: processes of several machines may not meet"
        return Finding("note", "host name", detail, "export GLOO_SOCKET_IFNAME=eth0")
    if str(found).startswith(_LOOPBACK):
        detail = f"{name!r} is {found}, which other machines cannot reach"
        return Finding("note", "host name", detail, "export GLOO_SOCKET_IFNAME=eth0")
    return Finding("ok", "host name", f"{name!r} is {found}")
