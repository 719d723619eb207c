"""Limits of cgroups v1 and v2, out of trees of files as the kernel shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from neaptide_toolkit.machine import cgroups
from neaptide_toolkit.machine.cgroups import MemoryGroup, Mount

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
UNLIMITED_V1 = 9223372036854771712
V2 = "31 23 0:28 {source} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "".join(
    f"3{number} 31 0:3{number} {{source}} /sys/fs/cgroup/{names} rw shared:9 - cgroup cgroup "
    f"rw,{names}\n"
    for number, names in enumerate(("memory", "cpu,cpuacct", "pids"))
)


def tree(root: Path, mountinfo: str, cgroup: str, files: dict[str, object]) -> Path:
    """Write what `/proc` says and the files below `/sys/fs/cgroup`; return the root."""
    own = root / "proc" / "self"
    own.mkdir(parents=True)
    (own / "mountinfo").write_text(mountinfo, encoding="utf-8")
    (own / "cgroup").write_text(cgroup, encoding="utf-8")
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n", encoding="utf-8")
    return root


def v2(root: Path, files: dict[str, object], path: str = "/a/b", source: str = "/") -> Path:
    return tree(root, V2.format(source=source), f"0::{path}\n", files)


def v1(root: Path, files: dict[str, object], path: str = "/docker/x", source: str = "/") -> Path:
    groups = f"5:pids:{path}\n4:memory:{path}\n2:cpu,cpuacct:{path}\n1:name=systemd:/\n"
    return tree(root, V1.format(source=source), groups, files)


def test_without_proc_there_are_no_limits(tmp_path: Path) -> None:
    assert (None, None, []) == (
        cgroups.memory(tmp_path),
        cgroups.cpus(tmp_path),
        cgroups.mounts(tmp_path),
    )


def test_the_outer_of_nested_groups_can_be_the_tighter(tmp_path: Path) -> None:
    root = v2(
        tmp_path,
        {
            "memory.max": "max",
            "a/memory.max": 4 * GIB,
            "a/memory.current": 1 * GIB,
            "a/b/memory.max": 8 * GIB,
            "a/b/memory.current": 1 * GIB,
        },
    )
    assert MemoryGroup(limit=4 * GIB, room=3 * GIB) == cgroups.memory(root)


def test_the_fuller_of_nested_groups_gives_the_room(tmp_path: Path) -> None:
    root = v2(
        tmp_path,
        {
            "a/memory.max": 8 * GIB,
            "a/memory.current": 7 * GIB,
            "a/b/memory.max": 4 * GIB,
            "a/b/memory.current": 1 * GIB,
        },
    )
    assert MemoryGroup(limit=4 * GIB, room=1 * GIB) == cgroups.memory(root)


def test_file_cache_that_can_be_dropped_is_room(tmp_path: Path) -> None:
    files = {
        "a/b/memory.max": 4 * GIB,
        "a/b/memory.current": 4 * GIB,
        "a/b/memory.stat": f"anon {GIB}\ninactive_file {3 * GIB}",
    }
    assert MemoryGroup(4 * GIB, 3 * GIB) == cgroups.memory(v2(tmp_path, files))


def test_a_limit_without_a_reading_of_use(tmp_path: Path) -> None:
    assert MemoryGroup(GIB, GIB) == cgroups.memory(v2(tmp_path, {"a/b/memory.max": GIB}))


def test_max_everywhere_is_no_limit(tmp_path: Path) -> None:
    files = {"a/memory.max": "max", "a/b/memory.max": "max", "a/b/cpu.max": "max 100000"}
    root = v2(tmp_path, files)
    assert (None, None) == (cgroups.memory(root), cgroups.cpus(root))


def test_the_smallest_cpu_quota_counts(tmp_path: Path) -> None:
    files = {"cpu.max": "max 100000", "a/cpu.max": "150000 100000", "a/b/cpu.max": "400000 100000"}
    assert 1.5 == cgroups.cpus(v2(tmp_path, files))


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    root = v2(tmp_path, {"memory.max": GIB}, path="/kube/pod/x", source="/kube/pod/x")
    assert MemoryGroup(GIB, GIB) == cgroups.memory(root)


def test_a_group_outside_the_namespace_falls_back_to_the_mount(tmp_path: Path) -> None:
    root = v2(tmp_path, {"memory.max": GIB}, path="/../../elsewhere")
    assert MemoryGroup(GIB, GIB) == cgroups.memory(root)


def test_version_1_nested(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": UNLIMITED_V1,
        "memory/docker/memory.limit_in_bytes": 2 * GIB,
        "memory/docker/memory.usage_in_bytes": 1 * GIB,
        "memory/docker/x/memory.limit_in_bytes": UNLIMITED_V1,
        "memory/docker/x/memory.usage_in_bytes": 1 * GIB,
        "memory/docker/x/memory.stat": f"total_inactive_file {GIB // 2}",
        "cpu,cpuacct/docker/cpu.cfs_quota_us": -1,
        "cpu,cpuacct/docker/cpu.cfs_period_us": 100000,
        "cpu,cpuacct/docker/x/cpu.cfs_quota_us": 50000,
        "cpu,cpuacct/docker/x/cpu.cfs_period_us": 100000,
    }
    root = v1(tmp_path, files)
    assert (MemoryGroup(2 * GIB, 1 * GIB), 0.5) == (cgroups.memory(root), cgroups.cpus(root))


def test_version_1_unlimited(tmp_path: Path) -> None:
    files = {
        "memory/docker/x/memory.limit_in_bytes": UNLIMITED_V1,
        "memory/docker/x/memory.stat": f"hierarchical_memory_limit {UNLIMITED_V1}",
        "cpu,cpuacct/docker/x/cpu.cfs_quota_us": -1,
        "cpu,cpuacct/docker/x/cpu.cfs_period_us": 100000,
    }
    root = v1(tmp_path, files)
    assert (None, None) == (cgroups.memory(root), cgroups.cpus(root))


def test_version_1_knows_of_groups_above_the_visible_ones(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": UNLIMITED_V1,
        "memory/memory.usage_in_bytes": GIB,
        "memory/memory.stat": f"hierarchical_memory_limit {3 * GIB}\ntotal_inactive_file 0",
    }
    root = v1(tmp_path, files, path="/docker/x", source="/docker/x")
    assert MemoryGroup(3 * GIB, 2 * GIB) == cgroups.memory(root)


def test_both_versions_mounted_at_once(tmp_path: Path) -> None:
    mountinfo = V1.format(source="/") + V2.format(source="/").replace("cgroup rw", "cgroup/unified")
    files = {"memory/x/memory.limit_in_bytes": GIB}
    root = tree(tmp_path, mountinfo, "4:memory:/x\n0::/\n", files)
    assert MemoryGroup(GIB, GIB) == cgroups.memory(root)


def test_nonsense_is_no_limit(tmp_path: Path) -> None:
    root = v2(tmp_path, {"a/b/memory.max": "lots", "a/b/cpu.max": "", "a/cpu.max": "0 0"})
    assert (None, None) == (cgroups.memory(root), cgroups.cpus(root))


def test_a_name_may_hold_what_python_splits_at(tmp_path: Path) -> None:
    odd = "/a\x0bb\x85c\u2028d"
    root = tree(tmp_path, f"31 23 0:28 / {odd} rw - tmpfs  rw,size=4k\n", "", {})
    assert [Mount("/", odd, "tmpfs", frozenset({"rw", "size=4k"}))] == cgroups.mounts(root)


def test_escaped_mount_points_are_read(tmp_path: Path) -> None:
    line = r"40 23 8:1 / /mnt/my\040disk rw - ext4 /dev/sda1 rw,errors=continue"
    root = tree(tmp_path, f"{line}\n", "", {})
    expected = Mount("/", "/mnt/my disk", "ext4", frozenset({"rw", "errors=continue"}))
    assert [expected] == cgroups.mounts(root)


@given(limits=st.lists(st.none() | st.integers(1, 1 << 50), min_size=1, max_size=6))
def test_the_limit_is_the_smallest_on_the_way_up(
    tmp_path_factory: object, limits: list[int | None]
) -> None:
    parts = [f"g{number}" for number in range(len(limits))]
    files: dict[str, object] = {
        "/".join([*parts[: depth + 1], "memory.max"]): "max" if limit is None else limit
        for depth, limit in enumerate(limits)
    }
    root = tmp_path_factory.mktemp("tree")  # type: ignore[attr-defined]  # a pytest factory
    found = cgroups.memory(v2(root, files, path=f"/{'/'.join(parts)}"))
    smallest = min((limit for limit in limits if limit is not None), default=None)
    assert smallest == (found and found.limit)
