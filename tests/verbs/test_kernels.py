"""`neaptide kernels`: what it lists, why it chooses, what it keeps."""

import json
from pathlib import Path

import pytest
import torch

from neaptide.cli import main
from neaptide_kernels.registry import KERNELS
from neaptide_kernels.registry.timings import Table


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
    assert ("torch", "") == (explained["chosen"], reasons["torch"])
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


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
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
