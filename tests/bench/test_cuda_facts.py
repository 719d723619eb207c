"""The GPU questionnaire: what runs without a GPU, and that a failure stays a line of the report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import environment

Sections = dict[str, dict[str, dict[str, Any]]]

BENCH = Path(__file__).parents[2] / "bench"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    env = environment(BENCH, CUDA_VISIBLE_DEVICES="")
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> Sections:
    """Results by section and name of one run on the CPU."""
    path = tmp_path_factory.mktemp("facts") / "new folder" / "facts.json"
    done = python(str(BENCH / "cuda_facts.py"), "--device", "cpu", "--tiny", "--json", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(path.read_text())
    assert all(result["summary"] in done.stdout for result in report["sections"]["streaming"])
    return {
        name: {result["name"]: result for result in results}
        for name, results in report["sections"].items()
    }


@pytest.mark.slow
def test_the_cpu_answers_streaming_and_rebinding_without_a_failure(sections: Sections) -> None:
    assert list(sections) == ["streaming", "rebinding"]
    assert all(result["ok"] for results in sections.values() for result in results.values())


@pytest.mark.parametrize("form", ["resident, trained again (control)", "streamed, 2 slots"])
@pytest.mark.parametrize("precision", ["fp32", "bf16 autocast", "bf16 autocast, math attention"])
def test_streamed_training_is_bitwise_resident_training(
    sections: Sections, precision: str, form: str
) -> None:
    result = sections["streaming"][f"{precision}: {form}"]

    assert result["losses_equal"] is True
    assert result["weights_equal"] is True
    assert result["largest_gradient_difference"] == 0.0
    assert result["largest_gradient"] > 0.01


@pytest.mark.parametrize("precision", ["fp32", "bf16 autocast"])
def test_the_comparison_notices_a_forgotten_random_state(
    sections: Sections, precision: str
) -> None:
    result = sections["streaming"][f"{precision}: RNG not restored (control, must differ)"]

    assert result["losses_equal"] is False
    assert result["weights_equal"] is False


def test_hooks_fire_once_a_backward_pass_over_rebinds(sections: Sections) -> None:
    result = sections["rebinding"]["the same after use on the host"]

    assert result["right_gradients"] == 3
    assert result["fired"] == {"tensor": 4, "post-accumulate": 4}


def test_a_bfloat16_parameter_takes_float32_gradients_when_told(sections: Sections) -> None:
    result = sections["rebinding"]["bfloat16 parameter, float32 gradient"]

    assert result["without"].startswith("RuntimeError")
    assert (result["with"], result["in_place"]) == ("works", True)


def test_without_a_gpu_one_line_says_so_and_the_status_is_2() -> None:
    done = python(str(BENCH / "cuda_facts.py"))

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith("finds no NVIDIA GPU; --device cpu runs the checks that need none")


def test_a_failing_check_becomes_a_line_and_the_rest_goes_on() -> None:
    code = (
        "from probes.checks import run_checks\n"
        "run_checks([('a', lambda: {'summary': 'fine'}), ('b', lambda: 1 / 0),"
        " ('c', lambda: {'summary': 'fine'})])"
    )

    results = [json.loads(line) for line in python("-c", code).stdout.splitlines()]

    assert [(result["name"], result["ok"]) for result in results] == [
        ("a", True),
        ("b", False),
        ("c", True),
    ]
    assert results[1]["summary"] == "failed: ZeroDivisionError: division by zero"


def test_a_section_that_hangs_or_dies_becomes_a_line() -> None:
    code = (
        "import json, cuda_facts as facts\n"
        "facts.SECTIONS['rebinding'] = facts.Section('Hangs', 'probes.rebinding', 0)\n"
        "options = facts.arguments(['--device', 'cpu'])\n"
        "print(json.dumps([facts.measure(name, options) for name in ('rebinding', 'link')]))"
    )

    hanging, dying = json.loads(python("-c", code).stdout)

    assert [result["summary"] for result in hanging] == ["stopped after 0 s"]
    assert len(dying) == 1
    assert dying[0]["summary"].startswith("ended with status 1: ")
