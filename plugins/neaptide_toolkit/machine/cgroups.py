"""Memory and CPU limits of this process's control groups (cgroup v1 and v2)."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

ROOT = Path("/")
_UNLIMITED = 1 << 62
"""Numbers from here on mean no limit: cgroup v1 writes the largest page multiple below 2^63."""


@attrs.frozen
class MemoryGroup:
    """The tightest memory limit of all groups, in bytes."""

    limit: int
    """The smallest limit of all groups that contain this process."""
    room: int
    """Bytes that can be allocated before a group is full; droppable file cache counts as free."""


@attrs.frozen
class Mount:
    """A line of `/proc/self/mountinfo`."""

    source: str
    """The mounted directory of the file system; `/` is the whole file system."""
    point: str
    kind: str
    """The file system's type, such as `ext4`."""
    options: frozenset[str]


def memory(root: Path = ROOT) -> MemoryGroup | None:
    """Return the tightest memory limit, or None; `root` is the directory with `proc` and `sys`."""
    limits, rooms = [], []
    for group in _groups(root, "memory"):
        limit, room = _memory_of(group)
        limits += [] if limit is None else [limit]
        rooms += [] if room is None else [room]
    return MemoryGroup(min(limits), min([*rooms, *limits])) if limits else None


def cpus(root: Path = ROOT) -> float | None:
    """Return the smallest CPU quota, in CPUs, or None if no group sets one."""
    quotas = [_quota_of(group) for group in _groups(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def mounts(root: Path = ROOT) -> list[Mount]:
    """Return all mounts in the order of mounting; empty without `/proc`."""
    found = []
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, (kind, *_, options) = before.split(" "), after.split(" ")
        source, point = map(_unescaped, fields[3:5])
        found.append(Mount(source, point, kind, frozenset(options.split(","))))
    return found


def _groups(root: Path, controller: str) -> list[Path]:
    """Return the directories of this process's groups, innermost first, in both hierarchies."""
    paths = _own_paths(root)
    found: list[Path] = []
    for mount in mounts(root):
        if mount.kind == "cgroup2":
            path = paths.get("")
        elif mount.kind == "cgroup" and controller in mount.options:
            path = paths.get(controller)
        else:
            continue
        if path is not None:
            found += _upwards(root / mount.point.lstrip("/"), _below(path, mount.source))
    return found


def _own_paths(root: Path) -> dict[str, str]:
    """Return the path of the process's group for each v1 controller; the key `""` is for v2."""
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _below(path: str, source: str) -> str:
    # In a container the mount may begin at the container's own group, or at another group.
    prefix = source.rstrip("/")
    inside = path == prefix or path.startswith(f"{prefix}/")
    return path[len(prefix) :].strip("/") if inside and ".." not in path else ""


def _upwards(top: Path, path: str) -> list[Path]:
    groups = [top]
    for part in filter(None, path.split("/")):
        groups.append(groups[-1] / part)
    return groups[::-1]


def _memory_of(group: Path) -> tuple[int | None, int | None]:
    limit = _bytes(group / "memory.max")
    used, unused_key = _bytes(group / "memory.current"), "inactive_file"
    if limit is None and used is None:
        limit = _bytes(group / "memory.limit_in_bytes")
        used, unused_key = _bytes(group / "memory.usage_in_bytes"), "total_inactive_file"
    statistics = _statistics(group / "memory.stat")
    # In a container the groups above the container's group are hidden. Only this line states the
    # limit of those hidden groups.
    inherited = statistics.get("hierarchical_memory_limit", _UNLIMITED)
    smallest = min(_UNLIMITED if limit is None else limit, inherited)
    if smallest >= _UNLIMITED:
        return None, None
    if used is None:
        return smallest, None
    return smallest, max(0, smallest - used + statistics.get(unused_key, 0))


def _quota_of(group: Path) -> float | None:
    both = (_text(group / "cpu.max") or "").split()
    if not both:
        both = [_text(group / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    numbers = [int(number) for number in both if number.strip().isdecimal()]
    quota, period = numbers if len(numbers) == len(both) else (0, 0)
    return quota / period if quota > 0 and period > 0 else None


def _statistics(path: Path) -> dict[str, int]:
    pairs = [line.split() for line in _lines(path)]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdecimal()}


def _bytes(path: Path) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def _lines(path: Path) -> list[str]:
    # Not splitlines: the kernel escapes line feeds in names, but not Python's other line ends.
    return list(filter(None, (_text(path) or "").split("\n")))


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return None


def _unescaped(field: str) -> str:
    return re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), field)
