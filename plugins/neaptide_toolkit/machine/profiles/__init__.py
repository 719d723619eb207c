"""Profiles of machines: the rates of a GPU, its link, its host and its disk, each with its source.

A profile is a JSON file that a simulator or a planner reads. The figures of the shipped ones are
not exact: most are assumed, and others come from data sheets, whose rates no program reaches. Those
of `h100` are measured. `Machine.sources` says where each figure comes from.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from attrs.validators import ge, gt

from neaptide.config import structure_options
from neaptide.errors import ConfigError, suggest
from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER = Path(__file__).parent
_KINDS = ("data sheet: ", "measured: ", "assumed: ")


@attrs.frozen(kw_only=True, repr=False)
class Rates:
    """The figures of one machine with one GPU: bytes/s, FLOP/s, seconds and bytes."""

    flops_half: float = attrs.field(validator=gt(0))
    """FLOP/s of dense products in bfloat16 that accumulate in float32."""
    flops_single: float = attrs.field(validator=gt(0))
    """FLOP/s in float32, without tensor cores."""
    bandwidth: float = attrs.field(validator=gt(0))
    """Bytes/s of the device's memory."""
    to_device: float = attrs.field(validator=gt(0))
    """Bytes/s of a copy from pinned host memory to the device."""
    to_host: float = attrs.field(validator=gt(0))
    """Bytes/s of a copy from the device to pinned host memory."""
    peer: float = attrs.field(validator=gt(0))
    """Bytes/s of a copy to another device, in one direction."""
    host_bandwidth: float = attrs.field(validator=gt(0))
    """Bytes/s of the host's memory."""
    launch_host: float = attrs.field(validator=ge(0))
    """Seconds that the host needs to enqueue one operation."""
    launch_device: float = attrs.field(validator=ge(0))
    """Seconds that each operation takes on the device in addition to its work."""
    copy_latency: float = attrs.field(validator=ge(0))
    """Seconds that each copy takes in addition to its bytes."""
    disk_read: float = attrs.field(validator=gt(0))
    """Bytes/s read from the disk."""
    disk_write: float = attrs.field(validator=gt(0))
    """Bytes/s written to the disk."""
    host_flops: float = attrs.field(validator=gt(0))
    """FLOP/s of the host in float32, all cores together."""
    capacity: int = attrs.field(validator=gt(0))
    """Bytes of the device's memory."""

    __repr__ = one_line


def _each_has_a_source(machine: Machine, _: object, sources: Mapping[str, str]) -> None:
    names = {field.name for field in attrs.fields(Rates)}
    if wrong := sorted(names ^ set(sources)):
        msg = f"must name a source for each rate and nothing else (look at {', '.join(wrong)})"
        raise ValueError(msg)
    for name, source in sources.items():
        if not source.startswith(_KINDS):
            msg = f"each must start with one of {_KINDS} ({name!r} is {source!r} @ {machine.name})"
            raise ValueError(msg)


@attrs.frozen(kw_only=True, repr=False)
class Machine:
    """A machine's rates, and where each of them comes from."""

    name: str
    """The GPU's name, as its driver reports it."""
    rates: Rates
    sources: dict[str, str] = attrs.field(validator=_each_has_a_source)
    """By rate: ``data sheet: …``, ``measured: …`` or ``assumed: …``."""
    measured: dict[str, str] = attrs.field(factory=dict)
    """Of a measured profile: its date, and the versions of torch and Neaptide."""

    __repr__ = one_line


def names() -> tuple[str, ...]:
    """Return the names of the profiles that Neaptide ships, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def path_of(name: str) -> Path:
    """Return the file of the shipped profile `name`. Raises ConfigError for an unknown name."""
    known = names()
    if name not in known:
        msg = f"there is no machine profile {name!r}{suggest(name, known)}; there is "
        raise ConfigError(msg + ", ".join(known))
    return _FOLDER / f"{name}.json"


def measured_path() -> Path:
    """Return the file of this machine's measured profile; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "neaptide" / "machine.json"


def load(profile: str | Path) -> Machine:
    """Return a profile: a shipped one by its name, or a JSON file by its `Path`.

    Raises ConfigError for an unknown name, and with one line per problem of the file. Raises
    OSError if the file cannot be read.
    """
    path = profile if isinstance(profile, Path) else path_of(profile)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        msg = f"{path}: not JSON ({error})"
        raise ConfigError(msg) from None
    if not isinstance(values, dict):
        msg = f"{path}: expected an object with name, rates and sources"
        raise ConfigError(msg)
    try:
        return structure_options(Machine, values)
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {problem}" for problem in error.problems)) from None
