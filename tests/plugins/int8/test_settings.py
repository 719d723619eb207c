"""Bad settings end in one line, before anything is allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neaptide.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("bits = 5", "unknown key 'bits'"),
        ('decode = "int8"', "unknown key 'decode'"),
        ('predict = "int4"', 'expected one of "full", "int8"'),
        ('granularity = "row"', "granularity"),
        ("block = 4", "'block' must be >= 8"),
        ('granularity = "block"\nblock = 24', "are not a multiple of the block of 24"),
        ('calibration = "mse"', "needs dynamic_range = false"),
        ("percentile = 10.0", "'percentile' must be > 50.0"),
        ('full = "int8"\nsymmetric = false', "'symmetric' must be true where full = 'int8'"),
        ("gap_limit = 0.1\nmeasure_every = 0", "'gap_limit' needs measure_every >= 1"),
        ('include = ["nowhere.*"]', "no module with a matrix matches 'nowhere.*'"),
        ('exclude = ["*"]', "no weight is left to quantize"),
        ('exclude = ["nowhere"]', "no module matches 'nowhere' in exclude"),
        ('predict = "full"', "or another phase must be 'int8'"),
        ("block = 32", "'block' needs granularity = 'block'"),
    ],
)
def test_one_line_and_exit_code_2(
    setting: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(f"[plugins.int8]\n{setting}\n", encoding="utf-8")
    assert 2 == main(["run", "--preset", "tiny-cpu", "run.toml"])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert told in line
    assert "plugins.int8" in line
