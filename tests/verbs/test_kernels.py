"""`neaptide kernels`: what it lists, why it chooses, what it keeps."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from neaptide.cli import main
from neaptide_kernels.registry import KERNELS
from neaptide_kernels.registry.timings import Table
from neaptide_toolkit.machine import profiles


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEAPTIDE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(KERNELS, "_timings", Table(lambda: KERNELS.path))


def test_the_list_names_every_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["kernels", "list", "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()

    assert any(line.startswith("quantize_int8 ") and "triton" in line for line in lines)


def test_an_explanation_gives_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["kernels", "explain", "quantize_int8", "--device", "cpu", "--json"])
    explained = json.loads(capsys.readouterr().out)

    reasons = {one["provider"]: one["reason"] for one in explained["providers"]}
    chosen = "numba" if find_spec("numba") else "torch"
    assert (chosen, "") == (explained["chosen"], reasons[chosen])
    assert "on a GPU" in reasons["triton"]


def test_a_tuned_op_is_explained_by_its_timings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert 0 == main(["kernels", "bench", "dequantize_int8", "--device", "cpu", "--json"])
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert not (tmp_path / "kernels.json").exists()
    assert 0 == main(["kernels", "tune", "dequantize_int8", "--device", "cpu"])
    assert f"kept in {tmp_path / 'kernels.json'}" in capsys.readouterr().out
    sample = measured[0]["sample"]
    assert 0 == main(
        ["kernels", "explain", "dequantize_int8", "--device", "cpu", "--sample", sample]
    )
    assert "the fastest one measured" in capsys.readouterr().out


def test_what_cannot_be_kept_is_not_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEAPTIDE_CACHE_DIR", str(tmp_path / "file"))
    assert 0 != main(["kernels", "tune", "dequantize_int8", "--device", "cpu"])
    told = capsys.readouterr()
    assert "set NEAPTIDE_CACHE_DIR elsewhere" in told.err
    assert "on " not in told.out


def test_a_list_is_kept_until_something_changes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed() -> str:
        assert 0 == main(["kernels", "list", "--device", "cpu"])
        return capsys.readouterr().out

    def forged() -> None:
        (path,) = tmp_path.glob("kernels-list-*.json")
        path.write_text(path.read_text().replace('"rope"', '"kept"'))

    expected = listed()
    assert "kept " not in expected
    forged()
    assert "kept " in listed()
    monkeypatch.setenv("TRITON_SOMETHING", "1")
    assert expected == listed()
    forged()
    (tmp_path / "kernels.json").write_text('{"version": 1, "timings": {}}')
    assert "kept " not in listed()
    for path in tmp_path.glob("kernels-list-*.json"):
        path.write_text("{")
    assert "kept " not in listed()


def test_a_kept_list_imports_no_torch(tmp_path: Path) -> None:
    code = """
import sys
from neaptide.cli import main
main(["kernels", "list", "--device", "cpu"])
print("torch" in sys.modules)
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "NEAPTIDE_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert said[0][:-1] == said[1][:-1]
    assert ["True", "False"] == [lines[-1] for lines in said]


def test_roofs_are_computed_for_every_op_and_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["kernels", "roof", "--device", "h100", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert ("H100 80GB", True) == (told["machine"], told["computed"])
    assert set(KERNELS.ops) == {row["op"] for row in told["roofs"]}
    rates = profiles.load("h100").rates
    for row in told["roofs"]:
        assert row["seconds"] >= row["bytes"] / rates.bandwidth + rates.launch_device
    (gated,) = [row for row in told["roofs"] if row["sample"].endswith("bfloat16, silu")][:1]
    moved = 3 * 8192 * 11_008 * 2
    assert moved == gated["bytes"]
    assert moved / rates.bandwidth + rates.launch_device == pytest.approx(gated["seconds"])
    assert {"memory", "arithmetic", "launch"} == {row["bound"] for row in told["roofs"]}


def test_a_table_of_roofs_says_that_it_is_computed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 == main(["kernels", "roof", "rope", "--device", "t4"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"computed for {profiles.load('t4').name}, not measured; no kernel is faster"
    assert all(line.startswith("rope") and "computed" in line for line in lines[2:4])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert 2 == main(["kernels", "roof", "--device", "cpu"])
    assert "has not been measured; run neaptide doctor --bench" in capsys.readouterr().err
    measured = profiles.measured_path()
    measured.parent.mkdir(parents=True)
    measured.write_text(profiles.path_of("h100").read_text())
    assert 0 == main(["kernels", "roof", "rope", "--device", "cpu"])
    assert "computed for the host of H100 80GB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["roof", "ropes", "--device", "h100"], "did you mean 'rope'"),
        (["roof", "--device", "h1000"], "there is no machine profile 'h1000'"),
        (["explain", "quantise_int8"], "did you mean 'quantize_int8'"),
        (["tune", "nothing"], "there is no op 'nothing'"),
        (["explain", "quantize_int8", "--sample", "x"], "no sample is named 'x'"),
        (["list", "--device", "tpu"], "--device is cpu, cuda, xpu or mps (got 'tpu')"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert 2 == main(["kernels", *arguments])
    (line,) = capsys.readouterr().err.splitlines()

    assert problem in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["kernels", "list", "--device", "cuda"])
    assert "no usable CUDA device" in capsys.readouterr().err


def test_damaged_timings_are_not_tuned_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "kernels.json").write_text("{")

    assert 1 == main(["kernels", "tune", "encode_state", "--device", "cpu"])
    assert "{" == (tmp_path / "kernels.json").read_text()
    assert "delete the file and tune again" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_damaged_file_of_timings_is_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    (tmp_path / "kernels.json").write_text("{")
    assert 0 == main(["kernels", "explain", "encode_state", "--device", "cpu", *options])
    out, err = capsys.readouterr()

    note = f"the kernels' timings in {tmp_path / 'kernels.json'} are damaged; delete the file"
    said = json.loads(out)["notes"][0] if options else out.splitlines()[-1]
    assert said.removeprefix("note: ").startswith(note)
    assert "" == err
