"""Several processes in a plan: what `--nproc`, `--nodes` and `--link` say, and what one sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide.errors import ConfigError
from neaptide.hooks.registry import installed_plugins
from neaptide.io.units import duration, size
from neaptide.text import one_line, table
from neaptide_toolkit.dry_run.processes.link import LINK
from neaptide_toolkit.dry_run.processes.places import Processes
from neaptide_toolkit.ranks.launching import divider_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec
    from neaptide_toolkit.dry_run.clock import Times
    from neaptide_toolkit.machine.profiles import Rates

_SHOWN = 2**10
"""Bytes from which a text shows what is held."""
_ACCUMULATES = "gradient.accumulation"
"""The claim of plugins that divide a batch before the processes do."""
_SHARED = ("host_bandwidth", "host_flops", "disk_read", "disk_write")
"""Rates of a node that its processes share, beside those of the device if it is a CPU."""
_OF_A_CPU = ("flops_half", "flops_single", "bandwidth")


@attrs.frozen(kw_only=True, repr=False)
class ProcessPlan:
    """What the processes of a run exchange, as computed for one of them.

    Attributes:
        count: how many there are.
        nodes: on how many machines.
        link: bytes/s of the slowest link; None if nobody knows it.
        sent: bytes that a process sends in a step, by collective.
        holds: the most bytes on a process's device, by what they are for, each at its own moment.
        seconds: that the link is busy in a step; None without `link`.
        waited: of these, the seconds in which the computation waits; None without rates.
    """

    count: int
    nodes: int
    link: float | None
    sent: Mapping[str, int]
    holds: Mapping[str, int]
    seconds: float | None
    waited: float | None

    __repr__ = one_line

    def __str__(self) -> str:
        """Return what a process holds, what it sends, and what the link takes."""
        return "\n\n".join(self._parts())

    def _parts(self) -> Iterator[str]:
        held = [(kind, size(held)) for kind, held in self.holds.items() if held >= _SHOWN]
        yield f"{self.head()}\nit holds at most\n{table(held)}"
        sends = [(name, size(nbytes)) for name, nbytes in self.sent.items()]
        yield f"it sends in a step\n{table(sends)}\n{self.told()}"

    def head(self) -> str:
        """Return what is computed, in one line."""
        where = "one node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"computed for one of {self.count} processes on {where}; none was started"

    def told(self) -> str:
        """Return the time of the link in one line."""
        if self.link is None or self.seconds is None:
            return "link: unknown, so no time counts for it; give its GB/s @ --link"
        told = f"link of {self.link / 1e9:g} GB/s: busy for {_short(self.seconds)}"
        if self.waited is None:
            return told
        waited = min(self.waited, self.seconds)
        beside = _short(self.seconds - waited)
        return f"{told}; the computation waits {_short(waited)} of it, {beside} are beside it"


def _short(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def given_processes(
    nproc: int | None,
    nodes: int | None,
    link: float | None,
    config: RunConfig,
    ordered: Sequence[PluginSpec],
) -> Processes | None:
    """Return the processes that the options name; None for one.

    Args:
        nproc: of all nodes together.
        nodes: None for one.
        link: GB/s.
        config: of the run.
        ordered: the manifests of its plugins.

    Raises:
        ConfigError: the options or the configuration cannot be of several processes.
    """
    for flag, value in (("--nproc", nproc), ("--nodes", nodes)):
        if value is not None and value < 1:
            msg = f"there is at least 1 (got {value} @ {flag})"
            raise ConfigError(msg)
    if link is not None and not 0 < link < float("inf"):
        msg = f"a link has more than 0 GB/s (got {link:g} @ --link)"
        raise ConfigError(msg)
    count, several = nproc or 1, nodes or 1
    if count == 1:
        if several > 1 or link is not None:
            flag = "--nodes" if several > 1 else "--link"
            msg = f"only several processes have a link; say how many by --nproc @ {flag}"
            raise ConfigError(msg)
        return None
    if count % several:
        msg = f"each node has as many processes: {count} are not divisible by {several} @ --nodes"
        raise ConfigError(msg)
    if several > 1 and link is None:
        msg = f"nobody knows the link between {several} nodes; give its GB/s as --link 25 @ --nodes"
        raise ConfigError(msg)
    divider_of(config, ordered, count)
    return Processes(count=count, nodes=several, link=None if link is None else link * 1e9)


def of_each_kind(config: RunConfig, processes: Processes) -> list[Processes]:
    """Return the processes with the most rows of weights, and with the most samples.

    The first has the most rows. The last has the most samples of a batch that is not divisible.
    """
    specs = installed_plugins().usable()
    accumulates = any(_ACCUMULATES in specs[name].claims for name in config.plugins)
    if config.train.batch_size % processes.count or accumulates:
        return [processes, attrs.evolve(processes, rank=processes.count - 1)]
    return [processes]


def of_one(rates: Rates, processes: Processes, *, on_a_cpu: bool) -> Rates:
    """Return the part of a machine's rates that one process has."""
    shared = (*_SHARED, *(_OF_A_CPU if on_a_cpu else ()))
    own = {name: getattr(rates, name) / processes.on_a_node for name in shared}
    return attrs.evolve(rates, **own)


def exchanged(
    processes: Processes,
    sent: Mapping[str, int],
    holds: Mapping[str, int],
    peer: float | None,
    times: Times | None,
) -> ProcessPlan:
    """Return what the processes exchange in a step.

    Args:
        processes: those of the run.
        sent: bytes that one of them sends, by collective.
        holds: as in `ProcessPlan`.
        peer: bytes/s within a node; None if unknown.
        times: of the step; None without rates.
    """
    rate = processes.ring_rate(range(processes.count), peer)
    seconds = None if rate is None else sum(sent.values()) / float(rate)
    waited = None
    if times is not None and seconds is not None:
        seconds, waited = times.busy.get(LINK, 0.0), times.waited.get(LINK, 0.0)
    return ProcessPlan(
        count=processes.count,
        nodes=processes.nodes,
        link=None if rate is None else float(rate),
        sent=sent,
        holds=holds,
        seconds=seconds,
        waited=waited,
    )
