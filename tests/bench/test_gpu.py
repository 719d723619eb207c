"""The command for a real GPU: what it runs, what it notes, how it goes on; and no names in it."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neaptide_kernels import catalogue
from neaptide_kernels.registry import KERNELS

if TYPE_CHECKING:
    from types import SimpleNamespace

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
NOT_FOR_A_GPU = {
    "beyond_ram": "it limits the RAM of a CPU, which is the device",
    "checkpoints": "it writes and reads files of state in RAM",
    "clones": "it writes and reads files of state in RAM",
    "data": "it reads and tokenizes files, and trains on a CPU beside it",
    "fits": "it plans, for machines that are not there",
    "forecast": "it reads files of other runs",
    "gpu": "it is the command",
    "held_up": "it trains on a CPU, beside saves to files",
    "host_steps": "it updates in RAM",
    "host_peak": "it counts bytes of RAM",
    "inside_trainers": "it trains on a CPU, beside another library's trainer",
    "largest": "it counts bytes of RAM",
    "launches": "it counts on the simulated GPU, and times Python",
    "loading": "it reads files into RAM",
    "long_sequences": "it counts bytes in dry runs",
    "offloads": "it runs on the simulated GPU",
    "passes": "it times one thread of a CPU",
    "plan": "it compares bytes on a CPU, and on a simulated GPU",
    "predict": "it counts passes; tests/simulated_gpu runs it on a device",
    "reliability": "it damages files",
    "shard_saves": "processes divide a model on a CPU",
    "shards": "processes divide a model on a CPU",
    "startup": "it imports, and makes one update of a small model",
    "streaming": "it uses a CPU as the device; scale.py is the bench for a GPU",
    "timelines": "it runs on the simulated GPU",
    "verdict": "it trains on a CPU, to count updates",
    "wait_policy": "it is about the threads of a CPU",
}
WRITES = (
    "import json, sys\n"
    "path = sys.argv[sys.argv.index('--json') + 1]\n"
    "open(path, 'w').write(json.dumps({'seconds': 0.25, 'at': path, 'ok': True}))\n"
    "print('a table')\n"
)


def planned(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, *codes: str) -> None:
    """Let the steps be these programs, all of them in slice c."""
    made = [
        bench.steps.Step("c", f"step {number}", ("-c", code), ("-c", code), 30.0, ("json",))
        for number, code in enumerate(codes)
    ]
    monkeypatch.setattr(bench.gpu, "STEPS", made)


def noted(out: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((out / "gpu.json").read_text())["slices"]["c"]
    return found


def test_every_step_runs_a_program_that_is_there(bench: SimpleNamespace) -> None:
    steps = bench.steps.STEPS
    assert sorted({step.slice for step in steps}) == ["a", "b", "c", "d", "e"]
    assert len({(step.slice, step.name) for step in steps}) == len(steps)
    for step in steps:
        paths = [word for word in (*step.real, *step.tiny) if "/" in word and "=" not in word]
        assert paths
        assert [] == [path for path in paths if not (ROOT / path).exists()], step.name
        assert step.limit < 9 * 60
    assert {provider.op for provider in catalogue.triton_providers()} <= set(bench.steps.OPS)
    assert set(bench.steps.OPS) <= set(KERNELS.ops)


def test_every_model_is_a_configuration_of_the_scale_bench(bench: SimpleNamespace) -> None:
    from scaling.configurations import configurations

    assert set(bench.steps.SCALE) <= {each.key for each in configurations()}


def test_every_bench_is_run_or_is_not_for_a_gpu(bench: SimpleNamespace) -> None:
    run = {Path(word).stem for step in bench.steps.STEPS for word in step.real if "bench/" in word}
    folders = (BENCH, BENCH / "plugins", BENCH / "models", BENCH / "runs", BENCH / "simulated")
    scripts = {path.stem for folder in folders for path in folder.glob("*.py")}
    assert scripts == run | set(NOT_FOR_A_GPU)
    assert not run & set(NOT_FOR_A_GPU)


def test_every_page_that_waits_for_a_gpu_is_measured(bench: SimpleNamespace) -> None:
    run = {Path(word).stem for step in bench.steps.STEPS for word in step.real if "bench/" in word}
    waiting = re.compile(r"not(hing was)? measured[^.|]*\bGPU", re.IGNORECASE)
    pages = (ROOT / "docs" / "benchmarks").glob("*.md")
    stems = {page.stem.replace("-", "_") for page in pages if waiting.search(page.read_text())}
    assert "overhead" in stems
    assert stems - set(NOT_FOR_A_GPU) <= run


def test_a_step_is_noted_and_a_second_call_goes_on(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    fails_once = f"import os, sys\nok = os.path.exists({str(once)!r})\nopen({str(once)!r}, 'w')\n"
    fails_once += "if not ok:\n    raise ValueError('the first time')\n"
    planned(bench, monkeypatch, fails_once + WRITES, WRITES)
    call = ["--slices", "c", "--out", str(tmp_path / "out")]

    assert bench.gpu.INCOMPLETE == bench.gpu.main(call)
    first = noted(tmp_path / "out")
    assert ["failed", "done"] == [entry["outcome"] for entry in first.values()]
    assert "ValueError: the first time" == first["step 0"]["last_lines"][-1]
    assert (0.25, ["a table"]) == (
        first["step 1"]["result"]["seconds"],
        first["step 1"]["report"],
    )

    assert bench.gpu.DONE == bench.gpu.main(call)
    second = noted(tmp_path / "out")
    assert ["done", "done"] == [entry["outcome"] for entry in second.values()]
    assert first["step 1"] == second["step 1"]


def test_a_step_is_stopped_with_what_it_started(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sleeps = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; "
    sleeps += "time.sleep(60)'])"
    planned(bench, monkeypatch, sleeps, WRITES)
    call = ["--slices", "c", "--out", str(tmp_path), "--minutes", "0.02"]
    assert bench.gpu.INCOMPLETE == bench.gpu.main(call)
    entry = noted(tmp_path)["step 0"]
    assert "stopped" == entry["outcome"]
    assert entry["seconds"] < 10
    assert "step 1" not in noted(tmp_path), "the slice's time was over"
    assert "step 1" == bench.gpu.due(json.loads((tmp_path / "gpu.json").read_text()), "c")[0].name


def test_a_missing_package_is_said(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    step = bench.steps.Step("c", "one", ("-c", WRITES), (), 30.0, ("json", "not_there_at_all"))
    monkeypatch.setattr(bench.gpu, "STEPS", [step])
    assert bench.gpu.DONE == bench.gpu.main(["--slices", "c", "--out", str(tmp_path)])
    entry = noted(tmp_path)["one"]
    assert ("missing", "not installed: not_there_at_all") == (entry["outcome"], entry["reason"])


def test_results_of_another_device_are_not_mixed(
    bench: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    planned(bench, monkeypatch, WRITES)
    call = ["--slices", "c", "--out", str(tmp_path)]
    assert bench.gpu.DONE == bench.gpu.main(call)
    bench.device["name"] = "another card"
    assert bench.gpu.REFUSED == bench.gpu.main(call)
    assert "has results of another device, a card; give another --out" in capsys.readouterr().err


def test_without_a_gpu_one_line_says_so(
    bench: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.device["name"] = None
    assert bench.gpu.REFUSED == bench.gpu.main(["--out", str(tmp_path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu: torch finds no GPU; --dry-run")


def test_the_file_has_no_names_of_hosts_users_or_folders(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "tidepool.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "limpet")
    tells = (
        "import sys\nprint('by limpet on tidepool', __import__('os').getcwd())\n"
        "print('at ~/limpet/data.bin and 4.2 GB/s of tests/bench/test_gpu.py')\n"
        "sys.exit('in /home/limpet/run/model.pt: tidepool.example.org has no GPU')\n"
    )
    planned(bench, monkeypatch, tells, WRITES)
    bench.gpu.main(["--slices", "c", "--out", str(tmp_path)])
    text = (tmp_path / "gpu.json").read_text()
    for name in ("limpet", "tidepool", str(ROOT.parent), str(tmp_path)):
        assert name not in text
    assert "in …/model.pt: … has no GPU" in text
    assert "4.2 GB/s of tests/bench/test_gpu.py" in text


def test_a_dry_run_writes_no_figure(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned(bench, monkeypatch, WRITES)
    command = lambda step, part, *_, **__: [sys.executable, *step.tiny, "--json", str(part)]  # noqa: E731
    monkeypatch.setattr(bench.running, "command_of", command)
    assert bench.gpu.DONE == bench.gpu.main(["--dry-run", "--slices", "c", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert (1, True, "simulated") == (
        document["format"],
        document["simulated"],
        document["device"]["memory_bytes"],
    )
    entry = noted(tmp_path)["step 0"]
    assert ("simulated", True, "simulated", "simulated") == (
        entry["result"]["seconds"],
        entry["result"]["ok"],
        entry["report"],
        entry["seconds"],
    )


def test_what_a_result_says_has_failed_is_found(bench: SimpleNamespace) -> None:
    result = {
        "sections": {"link": [{"name": "copies", "ok": False, "summary": "no link"}, {"ok": True}]},
        "rows": [{"key": "c2", "outcome": "failed", "reason": "a bug"}, {"outcome": "measured"}],
    }
    assert ["copies: no link", "c2: a bug"] == bench.running.problems_of(result)


def test_tests_that_passed_are_not_run_again(bench: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os\nfrom pathlib import Path\n\n"
        "COUNT = Path(__file__).with_name('count')\n\n"
        "def test_good():\n    COUNT.open('a').write('x')\n\n"
        "def test_bad():\n    assert os.environ.get('NOW_GOOD'), 'not yet'\n"
    )
    real = ("-m", "pytest", str(tmp_path), "--rootdir", str(tmp_path), "-c", "/dev/null")
    step = bench.steps.Step("a", "some, tests", real, real, 60.0, ("pytest",), tests=True)
    given = bench.running.environment(tmp_path / "site")
    first = bench.running.entry(step, tmp_path / "parts", 60.0, given, simulated=False)
    assert ("failed", "status 1") == (first["outcome"], first["reason"])
    assert (1, 1) == (first["result"]["passed"], first["result"]["failed"])
    assert ["AssertionError: not yet"] == list(first["result"]["failures"].values())
    given["NOW_GOOD"] = "1"
    second = bench.running.entry(step, tmp_path / "parts", 60.0, given, simulated=False)
    assert ("done", 2, 0) == (
        second["outcome"],
        second["result"]["passed"],
        second["result"]["failed"],
    )
    assert "x" == (tmp_path / "count").read_text()


def test_a_tree_that_is_not_installed_gets_its_entry_points(
    bench: SimpleNamespace, tmp_path: Path
) -> None:
    site = bench.running.distribution(tmp_path)
    text = (site / "neaptide-0.dist-info" / "entry_points.txt").read_text()
    assert "[neaptide.plugins]\n" in text
    assert "\nlayer-streaming = neaptide_plugins.layer_streaming:SPEC\n" in text


@pytest.mark.parametrize("minutes", ["nan", "-1", "0"])
def test_a_limit_that_is_none_is_refused(bench: SimpleNamespace, minutes: str) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.gpu.main(["--minutes", minutes])
    assert 2 == ended.value.code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_that_runs(tmp_path: Path, number: signal.Signals) -> None:
    waits = (
        "import signal, sys; sys.path.insert(0, sys.argv[1]); import gpu\n"
        "from first_minutes.running import run\n"
        "for each in (signal.SIGINT, signal.SIGTERM): signal.signal(each, gpu.stopped)\n"
        "print('ready', flush=True)\n"
        "run([sys.executable, '-c', sys.argv[2]], 60, {})\n"
    )
    started = tmp_path / "started"
    step = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    command = [sys.executable, "-c", waits, str(BENCH), step]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (started.exists() and started.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, told = process.communicate(timeout=30)
    assert (128 + number, "") == (process.returncode, told)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
