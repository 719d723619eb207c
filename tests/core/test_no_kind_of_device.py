"""Code asks a device what it can do. Only few files know a kind of accelerator by its name."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("core", "plugins", "kernels")

OF_ONE_KIND = {
    "kernels/neaptide_kernels/accelerator.py": "CUDA's compute capability",
    "kernels/neaptide_kernels/support.py": "Triton kernels written for CUDA and ROCm",
    "plugins/neaptide_plugins/profiler/snapshot.py": "the history of CUDA's allocator",
    "plugins/neaptide_toolkit/machine/devices.py": "the macOS that has bf16 on MPS",
}
"""Files that may name a kind of accelerator, and for what."""
KINDS = {"cuda", "xpu", "mps"}

pytestmark = pytest.mark.skipif(
    not (ROOT / "core").is_dir(), reason="the source tree is not beside the tests"
)


def names_of_kinds(source: str) -> Iterator[int]:
    """Yield each line that uses `torch.cuda`, `is_cuda` or the like, or compares with a kind."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in KINDS:
                yield node.lineno
            case ast.Attribute(attr=name) if name.removeprefix("is_") in KINDS and "is_" in name:
                yield node.lineno
            case ast.ImportFrom(module=str(module)) if any(
                module == f"torch.{kind}" or module.startswith(f"torch.{kind}.") for kind in KINDS
            ):
                yield node.lineno
            case ast.Compare():
                compared = [node.left, *node.comparators]
                inner = [
                    element
                    for each in compared
                    for element in (each.elts if isinstance(each, ast.Tuple | ast.Set) else [each])
                ]
                if any(isinstance(one, ast.Constant) and one.value in KINDS for one in inner):
                    yield node.lineno
            case _:
                pass


def found() -> dict[str, list[int]]:
    """Return the lines of each file that name a kind of device."""
    files = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    lines = {
        path.relative_to(ROOT).as_posix(): sorted(names_of_kinds(path.read_text(encoding="utf-8")))
        for path in files
    }
    return {path: numbers for path, numbers in lines.items() if numbers}


def test_no_other_file_names_a_kind_of_device() -> None:
    assert {} == {path: lines for path, lines in found().items() if path not in OF_ONE_KIND}


def test_the_list_has_no_file_that_names_none() -> None:
    assert OF_ONE_KIND.keys() <= found().keys()


@pytest.mark.parametrize(
    "source",
    [
        "torch.cuda.synchronize()",
        "stream = torch.xpu.Stream",
        "late = tensor.is_cuda",
        "from torch.cuda.amp import GradScaler",
        "gpu = device.type == 'cuda'",
        "gpu = device.type in ('cuda', 'xpu')",
        "gpu = 'mps' != kind",
    ],
)
def test_names_of_kinds_are_found(source: str) -> None:
    assert [1] == list(names_of_kinds(source))


@pytest.mark.parametrize(
    "source",
    ["on_host = device.type == 'cpu'", "api.synchronize()", "is_cuda(device)", "'cuda graphs'"],
)
def test_general_code_is_not_found(source: str) -> None:
    assert [] == list(names_of_kinds(source))
