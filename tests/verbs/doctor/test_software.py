"""Triton in every state, through stand-ins on the path; variables for a GPU and without."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from neaptide_toolkit.machine.facts import Gpu, Torch
from neaptide_verbs.doctor import software

if TYPE_CHECKING:
    from pathlib import Path

GPU = Gpu(0, "NVIDIA H200", 140 << 30, "9.0")
WITH_GPU = Torch("2.13.0", "CUDA 13.0", 2, (GPU,), None)
WITHOUT = Torch("2.13.0", "CPU", 2, (), None)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory on the path of this process and of those it starts."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    given = filter(None, [str(directory), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(given))
    return directory


def install(
    site: Path, name: str, version: str, source: str | None = None, needs: str = ""
) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {needs}"] if needs else []
    (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if source is not None:
        (site / f"{name}.py").write_text(f"{source}\n", encoding="utf-8")


PINNED = 'triton==99.7.1; platform_system == "Linux"'


@pytest.mark.parametrize(
    ("version", "source", "level", "words", "advice"),
    [
        ("99.7.1", "", "ok", "99.7.1, as torch pins it", None),
        ("99.7.1+git1", "", "ok", "99.7.1+git1, as torch pins it", None),
        ("99.6.0", "", "warning", "torch 2.13.0 pins 99.7.1", "pip install triton==99.7.1"),
        ("99.7.1", "raise OSError('no')", "warning", "OSError: no", "pip install triton==99.7.1"),
        (
            "99.7.1",
            "import os; os.abort()",
            "warning",
            "cannot be imported",
            "pip install triton==99.7.1",
        ),
    ],
)
def test_triton_has_to_be_the_one_that_torch_pins(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    source: str,
    level: str,
    words: str,
    advice: str | None,
) -> None:
    monkeypatch.setenv("CC", "cc")
    install(site, "torch", "2.13.0", needs=PINNED)
    install(site, "triton", version, source)
    found = software.triton(WITH_GPU)
    assert (level, advice) == (found.level, found.advice)
    assert words in found.detail


def test_triton_needs_a_compiler(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "torch", "2.13.0", needs=PINNED)
    install(site, "triton", "99.7.1", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(site))
    found = software.triton(WITH_GPU)
    assert ("warning", "apt-get install gcc") == (found.level, found.advice)


def test_triton_that_is_missing_matters_with_a_gpu_only(site: Path) -> None:
    install(site, "torch", "2.13.0", needs=PINNED.replace("triton", "triton-of-nobody"))
    with_gpu, without = software.triton(WITH_GPU), software.triton(WITHOUT)
    assert ("warning", "pip install triton-of-nobody==99.7.1") == (with_gpu.level, with_gpu.advice)
    assert ("ok", None) == (without.level, without.advice)


def levels(environ: dict[str, str], torch: Torch) -> dict[str, Any]:
    return {found.what: found.level for found in software.environment(environ, torch)}


def test_a_gpu_without_settings_for_its_allocator_is_noted() -> None:
    assert {"PYTORCH_ALLOC_CONF": "note", "variables": "ok"} == levels({}, WITH_GPU)
    settings = "expandable_segments:True"
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        assert {name: "ok"} == levels({name: settings}, WITH_GPU)


def test_variables_of_others_are_left_out() -> None:
    assert {"variables": "ok"} == levels({"HOME": "/home/somebody", "PATH": "/bin"}, WITHOUT)
    assert {} == software.variables({"HOME": "/home/somebody"})
