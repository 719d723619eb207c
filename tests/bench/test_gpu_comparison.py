"""What `bench/gpu.py --compare` says beside the simulated device, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path
    from types import SimpleNamespace


def test_a_comparison_says_what_is_predicted_and_what_is_not(
    bench: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from first_minutes import predicting

    measured = {"device_seconds_a_step": [0.5, 0.4, 0.6], "peak_device_bytes": 4_000_000_000}
    rows = [
        {"key": "one", "subject": "resident", "parameters": 10, **measured},
        {"key": "two", "subject": "fsdp2", "parameters": 10, **measured},
        {"key": "three", "subject": "streamed", "parameters": 10**15, **measured},
        {"key": "four", "subject": "resident", "parameters": 10, "device_seconds_a_step": None},
    ]
    document = {
        "format": bench.record.FORMAT,
        "simulated": False,
        "device": {"name": "a card"},
        "slices": {
            "b": {"profile": {"result": {"name": "a card", "rates": {}, "sources": {}}}},
            "d": {"all": {"result": {"rows": rows}}, "broken": {"result": None}},
        },
    }
    simulated = {"device_seconds_a_step": [0.45], "peak_device_bytes": 3_900_000_000}
    done = bench.running.Done(0, 2.0, f"a line\n{json.dumps(simulated)}\n", "")
    monkeypatch.setattr(predicting, "run", lambda *_: done)
    (tmp_path / "gpu.json").write_text(json.dumps(document))
    assert bench.gpu.DONE == bench.gpu.main(["--compare", str(tmp_path / "gpu.json")])
    printed = capsys.readouterr().out
    assert "| one | 0.500 | 0.450 | 0.90 | 4.00 | 3.90 | 0.975 |" in printed
    assert "- two: fsdp2 computes on the host" in printed
    assert "- three: simulating it needs 4500000 GB of RAM" in printed
    assert "four" not in printed
    compared = json.loads((tmp_path / "compared.json").read_text())
    assert ["one", "two", "three"] == [row["key"] for row in compared["rows"]]

    monkeypatch.setattr(predicting, "run", lambda *_: bench.running.Done(1, 2.0, "", "bad\nworse"))
    assert bench.gpu.INCOMPLETE == bench.gpu.main(["--compare", str(tmp_path / "gpu.json")])
    assert "- one: status 1: worse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file"), ("{", "is not JSON"), ("{}", "is no file of this command")],
)
def test_what_cannot_be_compared_is_told_in_a_line(
    bench: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    why: str,
) -> None:
    path = tmp_path / "gpu.json"
    if content is not None:
        path.write_text(content)
    assert bench.gpu.REFUSED == bench.gpu.main(["--compare", str(path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line
