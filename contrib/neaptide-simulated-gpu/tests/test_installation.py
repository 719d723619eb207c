"""What refuses an installation does so in one line; what was built is taken from the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
RUN = "import runpy, setuptools; setuptools.setup = lambda **_: None; "
LOADED = RUN + f"setup = runpy.run_path({str(PACKAGE / 'setup.py')!r}); "


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if name != "CXX"} | variables
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=own)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({}, "no C++ compiler is on PATH (g++, c++, clang++): install one, or name one by CXX"),
        ({"CXX": "nothere"}, "there is no C++ compiler 'nothere', which CXX names"),
    ],
)
def test_without_a_compiler_it_stops(named: dict[str, str], why: str, tmp_path: Path) -> None:
    done = python(LOADED + "setup['compiler']()", PATH=str(tmp_path), **named)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"simulated_gpu: {why}")


def test_clang_alone_is_a_compiler(tmp_path: Path) -> None:
    clang = tmp_path / "clang++"
    clang.write_text("")
    clang.chmod(0o755)
    done = python(LOADED + "print(setup['compiler']())", PATH=str(tmp_path))
    assert done.stdout == f"{clang}\n"


def other_torch(folder: Path, version: str, *, cuda: bool) -> str:
    """Put a distribution with the name of torch there; return the path for Python."""
    package, record = folder / "torch", folder / f"torch-{version}.dist-info"
    (package / "lib").mkdir(parents=True)
    record.mkdir()
    (package / "__init__.py").write_text("")
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    if cuda:
        (package / "lib" / "libtorch_cuda.so").touch()
    return str(folder)


@pytest.mark.parametrize(
    ("version", "cuda", "why"),
    [
        ("2.13.0+cu130", True, "this torch (2.13.0+cu130) has CUDA; a build for the CPU is needed"),
        ("2.12.1", False, "tried with torch 2.13.0, not with 2.12.1"),
    ],
)
def test_another_torch_is_refused(version: str, cuda: bool, why: str, tmp_path: Path) -> None:  # noqa: FBT001
    path = other_torch(tmp_path, version, cuda=cuda)
    done = python(LOADED + "setup['torch_folder']()", PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (1, f"simulated_gpu: {why}\n")


def test_without_torch_the_way_out_is_told() -> None:
    hidden = "import importlib.util as u; find = u.find_spec; "
    hidden += "u.find_spec = lambda name, *_: None if name == 'torch' else find(name); "
    done = python(LOADED + hidden + "setup['torch_folder']()")
    assert done.returncode == 1
    assert "torch is not here: install it first, then this package with" in done.stderr


BUILD = """
from pathlib import Path
from setuptools import Distribution, Extension
made = []
build = setup['Build'](Distribution({'ext_modules': [Extension('simulated_gpu._C', [])]}))
build.build_lib, build.build_temp = 'lib', 'temp'
def compiled(sources, folder, target):
    made.append(target)
    Path(target).write_text('library')
setup['Build'].build_extension.__globals__['compile_all'] = compiled
for _ in range(2):
    build.build_extension(Extension('simulated_gpu._C', []))
print(len(made), Path(build.get_ext_fullpath('simulated_gpu._C')).read_text())
print(*[path.suffix for path in Path('cache/simulated-gpu').iterdir()])
"""


def test_what_was_built_is_taken_from_the_cache(tmp_path: Path) -> None:
    code = f"import os; os.chdir({str(tmp_path)!r})\n{LOADED}\n{BUILD}"
    done = python(code, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (done.stdout, done.stderr) == ("1 library\n.so\n", "")


def test_another_compiler_or_source_is_another_entry_of_the_cache(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; one = Path(sys.executable); "
    code += LOADED + "print(setup['cached']([]) == setup['cached']([]), "
    code += f"setup['cached']([]) == setup['cached']([Path({str(PACKAGE / 'setup.py')!r})]))"
    done = python(code, XDG_CACHE_HOME=str(tmp_path))
    assert (done.stdout, done.stderr) == ("True False\n", "")


def test_a_program_with_a_backward_ends_cleanly() -> None:
    code = "import simulated_gpu, torch; "
    code += (
        "weight = torch.ones(8, device='cuda', requires_grad=True); (weight * 2).sum().backward()"
    )
    for _ in range(3):
        done = python(code)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
