"""The share of lines that mention a device counts what a run left out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from coverage_of_devices import ROOT, files, judged, reasons
from device_branches import Way, mentions, ways

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = '''"""Words in a text are no mention: torch.cuda."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    cuda = None


def held(device, torch):
    if device == "meta":
        return 0
    if (
        device.type == "cuda"
    ):
        return torch.cuda.memory_allocated()
    return torch.accelerator.memory_allocated()


def never(tensor):
    return tensor.is_cuda


def waits(api, threading):
    event = api.Event()
    other = threading.Event()
    event.synchronize()


class Device:
    type = "cpu"


class Torch:
    class accelerator:
        memory_allocated = int


held(Device, Torch)
'''


def test_ways_that_a_run_did_not_go_are_not_covered(tmp_path: Path) -> None:
    program, data, report = tmp_path / "program.py", tmp_path / "data", tmp_path / "report.json"
    program.write_text(SOURCE)
    measured = ["--branch", f"--data-file={data}", str(program)]
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "run", *measured], check=True, cwd=tmp_path)
    written = [f"--data-file={data}", "-o", str(report)]
    subprocess.run([*coverage, "json", *written], check=True, cwd=tmp_path)
    lines = json.loads(report.read_text())["files"]["program.py"]
    found = [way for mention in mentions(tmp_path, program) for way in ways(mention, lines)]
    assert {way.text: way.covered for way in found} == {
        "if device.type == 'cuda' (yes)": False,
        "if device.type == 'cuda' (no)": True,
        "return torch.cuda.memory_allocated()": False,
        "return torch.accelerator.memory_allocated()": True,
        "return tensor.is_cuda": False,
        "event = api.Event()": False,
        "event.synchronize()": False,
    }


def test_a_line_that_no_test_runs_fails_unless_its_reason_is_listed() -> None:
    found = [Way("one.py", str(line), covered=True) for line in range(99)]
    found.append(Way("one.py", "stream.wait()", covered=False))
    assert judged(found, {}).fails
    assert judged(found, {}).unlisted == [("one.py", "stream.wait()")]
    assert judged(found, {"two.py": {"stream.wait()": "why"}}).fails
    assert not judged(found, {"one.py": {"stream.wait()": "why"}}).fails


def test_too_small_a_share_fails_though_every_reason_is_listed() -> None:
    found = [Way("one.py", "line", covered=place > 0) for place in range(10)]
    assert judged(found, {"one.py": {"line": "why"}}).fails


def test_a_reason_is_given_for_what_is_there() -> None:
    there = {(mention.path, mention.text) for path in files() for mention in mentions(ROOT, path)}
    for path, lines in reasons().items():
        for text, why in lines.items():
            assert (path, text.removesuffix(" (yes)").removesuffix(" (no)")) in there
            assert why
