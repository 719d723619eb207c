"""Facts about the machine: what they say, what they never say, and what they cost to import."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from neaptide_toolkit.machine import facts as machine
from neaptide_toolkit.machine.cgroups import MemoryGroup
from neaptide_toolkit.machine.facts import Memory, Processor

CPUINFO = "processor\t: 0\nvendor_id\t: X\nmodel\t\t: 17\nmodel name\t: A fast one\ncache\t: 1\n"
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Jul 17 2025\nGCC version: 12\n"


def test_the_facts_are_those_of_this_machine() -> None:
    facts = machine.facts()
    assert platform.python_version() == facts["python"]
    assert psutil.virtual_memory().total == facts["memory"]["total_bytes"]
    assert os.cpu_count() == facts["cpu"]["count"]
    assert (str(torch.__version__), torch.get_num_threads()) == (
        facts["torch"]["version"],
        facts["torch"]["threads"],
    )
    # A simulated GPU is no fact of the machine.
    gpus = torch.cuda.device_count() if torch.version.cuda else 0
    assert gpus == len(facts["gpus"])
    assert machine.installed("neaptide") == facts["distributions"]["neaptide"]
    assert machine.installed("torch") == facts["distributions"]["torch"]


def test_the_facts_are_json_and_name_nobody_and_no_place() -> None:
    text = json.dumps(machine.facts())
    forbidden = {platform.node(), getpass.getuser(), str(Path.home()), str(Path.cwd())} - {"", "/"}
    found = [word for word in forbidden if f'"{word}' in text or f" {word} " in text]
    assert [] == found
    assert [] == [value for value in strings(json.loads(text)) if value.startswith(("/", "~"))]


def strings(tree: object) -> list[str]:
    """Return every string in nested dicts and lists."""
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    own = [tree] if isinstance(tree, str) else []
    return [*own, *(text for value in inner for text in strings(value))]


def test_reading_the_host_does_not_import_torch() -> None:
    code = """
import sys
from neaptide_toolkit.machine import facts as machine
machine.processor(), machine.memory(), machine.driver_version(), machine.distributions()
sys.exit("torch" in sys.modules)
"""
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_without_proc_and_sys_there_is_less_to_say(tmp_path: Path) -> None:
    assert None is machine.memory(tmp_path).group
    assert None is machine.processor(tmp_path).quota
    assert None is machine.driver_version(tmp_path)


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO, encoding="utf-8")
    assert "A fast one" == machine.processor(tmp_path).model


@pytest.mark.parametrize(
    ("path", "text"),
    [("sys/module/nvidia/version", "{}\n"), ("proc/driver/nvidia/version", DRIVER)],
)
def test_the_driver_has_a_version(tmp_path: Path, path: str, text: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text.format("580.65.06"), encoding="utf-8")
    assert "580.65.06" == machine.driver_version(tmp_path)


@pytest.mark.parametrize(
    ("affinity", "quota", "usable"),
    [(8, None, 8), (4, 6.0, 4), (4, 1.5, 1.5), (None, None, 16), (None, 2.0, 2)],
)
def test_usable_cpus(affinity: int | None, quota: float | None, usable: float) -> None:
    assert usable == Processor("x", 16, affinity, quota).usable


@pytest.mark.parametrize(
    ("total", "available", "group", "limit", "room"),
    [
        (16, 10, None, 16, 10),
        (16, 10, MemoryGroup(8, 3), 8, 3),
        (16, 2, MemoryGroup(8, 3), 8, 2),
        (16, 2, MemoryGroup(99, 50), 16, 2),
        (None, None, MemoryGroup(8, 3), 8, 3),
        (None, None, None, None, None),
    ],
)
def test_the_smaller_memory_limit_counts(
    total: int | None,
    available: int | None,
    group: MemoryGroup | None,
    limit: int | None,
    room: int | None,
) -> None:
    memory = Memory(total, available, group, None, None, None)
    assert (limit, room) == (memory.limit, memory.room)
