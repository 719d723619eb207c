"""The scale bench: its harness on toy models, what a rerun does, and what it says without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
STREAMED = "tiny-c1-124m-4gb-16k-adamw-streamed-lagged"
FSDP2 = "tiny-c1-124m-4gb-16k-adamw-fsdp2-none"
RESIDENT = "tiny-c1-124m-all-16k-adamw-resident-none"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(BENCH / "scale.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def tiny(path: Path, only: str) -> subprocess.CompletedProcess[str]:
    return run("--tiny", "--only", only, "--json", str(path))


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in json.loads(path.read_text())["rows"]}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where toys were measured: streamed, resident, FSDP2's offload; the last line was cut off."""
    path = tmp_path_factory.mktemp("scale") / "scale.json"
    done = tiny(path, "tiny-c1-124m-*-16k-adamw-[srf]*")
    assert 0 == done.returncode, done.stderr
    assert ["smoke test"] * 4 == [line.split(": ")[1] for line in done.stderr.splitlines()]
    lines = path.with_suffix(".lines")
    kept = lines.read_text()
    assert list(rows_of(path).values()) != []
    assert kept.splitlines()[-1].startswith(f'{{"key": "{FSDP2}"')
    lines.write_text(kept[:-100])
    return path


@pytest.mark.slow
def test_a_rerun_measures_what_is_missing_or_was_cut_off(measured: Path) -> None:
    every = "tiny-c1-124m-*-16k-adamw-*"
    first, second = tiny(measured, every), tiny(measured, every)

    assert (0, 0) == (first.returncode, second.returncode)
    missing = "tiny-c1-124m-4gb-16k-adamw-torchao-none: "
    tried = [line for line in second.stderr.splitlines() if not line.startswith(missing)]
    assert [] == tried
    assert f"{FSDP2}: smoke test" == first.stderr.splitlines()[0]
    assert STREAMED not in first.stderr
    row, other = (rows_of(measured)[key] for key in (STREAMED, FSDP2))
    assert row["tokens_per_s"] / other["tokens_per_s"] == row["x_fsdp2"]


@pytest.mark.slow
def test_a_row_has_the_ratios_and_the_binding_lane(measured: Path) -> None:
    done = tiny(measured, "tiny-c1-124m-*-16k-adamw-[sr]*")
    assert (0, "") == (done.returncode, done.stderr)
    rows = rows_of(measured)

    row, resident = rows[STREAMED], rows[RESIDENT]
    assert row["tokens_per_s"] / resident["tokens_per_s"] == row["x_resident"]
    assert max(row["lanes_s"], key=row["lanes_s"].get) == row["binding_lane"]
    assert row["share_of_roofline"] > 0
    assert row["h2d_bytes_a_step"] > row["d2h_bytes_a_step"] > 0
    assert {"matmul_tflops", "h2d_gbs", "d2h_gbs", "together_gbs"} == set(row["rates"])
    assert "lagged" == row["settings"]["layer-streaming"]["clip"]
    assert 0 == resident["h2d_bytes_a_step"]
    head, _, *lines = done.stdout.splitlines()
    assert {head.count("|")} == {line.count("|") for line in lines}
    assert 3 == sum("(smoke test)" in line for line in lines)


def test_the_plan_measures_nothing_and_says_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"

    done = run("--plan", "--ram-gib", "128", "--json", str(path))

    assert (0, "") == (done.returncode, done.stderr)
    rows = rows_of(path)
    assert {"not measured"} == {row["outcome"] for row in rows.values()}
    assert not any("tokens_per_s" in row for row in rows.values())
    lacking = {key for key, row in rows.items() if row["reason"]}
    assert "c4-13b-24gb-32k-adamw-streamed-lagged" in lacking
    assert "c3-7b-24gb-32k-adamw-streamed-lagged" not in lacking
    assert all("GB of RAM, 137.4 GB is there" in rows[key]["reason"] for key in lacking)


def test_the_table_goes_between_the_comments_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n<!-- table: begin -->\nold\n<!-- table: end -->\n\nB\n")

    done = run("--plan", "--only", "c1-*", "--page", str(page))

    assert 0 == done.returncode, done.stderr
    text = page.read_text()
    assert text.startswith("# A\n\n<!-- table: begin -->\n\n| case |")
    assert text.endswith("|\n\n<!-- table: end -->\n\nB\n")
    assert "old" not in text


def test_without_a_gpu_one_line_says_so_and_the_status_is_3() -> None:
    done = run()

    assert (3, "") == (done.returncode, done.stdout)
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        "finds no NVIDIA GPU; --plan prints the planned runs, --tiny tests the program on the CPU"
    )


def test_a_pattern_that_matches_none_is_named() -> None:
    done = run("--plan", "--only", "c9-*")

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("scale: --only 'c9-*' matches none: c1-124m-4gb-16k-adamw-")


def test_a_model_with_its_state_on_a_drive_is_simulated(tmp_path: Path) -> None:
    script = (
        "import json, sys\n"
        "from scaling import from_disk\n"
        "small = {'layers': 3, 'width': 1024, 'heads': 8, 'hidden': 2816, 'vocabulary': 256}\n"
        "streaming = {'ram_gib': 0.0}\n"
        "more = {'model': {'options': small}, 'plugins': {'layer-streaming': streaming}}\n"
        "found = [from_disk.planned(case, more) for case in from_disk.CASES]\n"
        "print(json.dumps([found, from_disk.table(found)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=BENCH, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    (two, one), table = json.loads(done.stdout.splitlines()[-1])
    block = 4 * 1024**2 + 3 * 1024 * 2816
    assert two["bytes"]["disk"] >= 3 * block * 12  # weights, masters and state, nothing in RAM
    assert one["seconds"] > two["seconds"]  # what one slot cannot overlap
    for row in (one, two):
        assert row["fits"]
        assert max(row["busy"].values()) <= row["seconds"]
        assert row["bound"] in table
    assert 4 == len(table.splitlines())


def test_several_cards_are_planned_at_once(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from scaling import configurations, on_cards\n"
        "configurations.SHAPES['124m'] = configurations.Shape(4, 1024, 8, 2816, 256)\n"
        "path = Path(sys.argv[1])\n"
        "sys.exit(on_cards.write('h200,t4', 'c1-*', path, None))\n"
    )
    path = tmp_path / "cards.json"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        cwd=BENCH,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    ((key, row),) = json.loads(path.read_text()).items()
    assert key == "124m adamw"
    assert row["cards"]["h200"]["tokens"] > row["cards"]["t4"]["tokens"]
    for card in row["cards"].values():
        assert max(card["busy"].values()) <= card["seconds"]
    assert f"| C1 | 124m | adamw | ({row['device'] / 2**30:.1f}) " in done.stdout
