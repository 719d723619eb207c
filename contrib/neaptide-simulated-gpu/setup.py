"""Builds the extension against the torch of this environment, once: the result is cached."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
TRIED = "2.13.0"
COMPILERS = ("g++", "c++", "clang++")
"""What is looked for where CXX names none."""
# NDEBUG as torch's own build has it: the layout of some of its classes depends on it.
FLAGS = [
    "-O1",
    "-std=c++20",
    "-fPIC",
    "-fvisibility=hidden",
    "-w",
    "-DNDEBUG",
    "-DTORCH_EXTENSION_NAME=_C",
]
LIBRARIES = ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]


def stop(why: str) -> NoReturn:
    """End the installation with the reason."""
    raise SystemExit("simulated_gpu: " + why)


def torch_folder() -> Path:
    """Return the folder of torch. Exits with the way out where it is not one to build against."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        stop("torch is not here: install it first, then this package with --no-build-isolation")
    version = metadata.version("torch")
    if version.split("+")[0] != TRIED:
        stop(f"tried with torch {TRIED}, not with {version}")
    folder = Path(spec.origin).parent
    if (folder / "lib" / "libtorch_cuda.so").exists():
        stop(f"this torch ({version}) has CUDA; a build for the CPU is needed")
    return folder


def compiler() -> str:
    """Return the C++ compiler: the one that CXX names, or the first that is on PATH."""
    named = os.environ.get("CXX")
    for wanted in [named] if named else COMPILERS:
        if found := shutil.which(wanted):
            return found
    if named:
        stop(f"there is no C++ compiler {named!r}, which CXX names: unset CXX, or correct it")
    stop(f"no C++ compiler is on PATH ({', '.join(COMPILERS)}): install one, or name one by CXX")


def cached(sources: list[Path]) -> Path:
    """Return where the library of these sources, this torch, Python and compiler is kept."""
    digest, torch = hashlib.sha256(), torch_folder()
    version = subprocess.run([compiler(), "--version"], capture_output=True, check=True).stdout
    facts = (
        metadata.version("torch"),
        str(torch),
        sysconfig.get_config_var("EXT_SUFFIX"),
        *FLAGS,
    )
    digest.update(repr(facts).encode() + version)
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "simulated-gpu" / f"{digest.hexdigest()[:32]}.so"


def compile_all(sources: list[Path], folder: Path, target: Path) -> None:
    """Compile each source, as many at once as there are cores, and link them."""
    torch = torch_folder()
    include = [
        torch / "include",
        torch / "include/torch/csrc/api/include",
        sysconfig.get_paths()["include"],
    ]
    flags = [*FLAGS, f"-iquote{HERE / 'csrc'}", *(f"-isystem{path}" for path in include)]
    folder.mkdir(parents=True, exist_ok=True)

    def compiled(source: Path) -> str:
        made = folder / f"{source.stem}.o"
        run([compiler(), *flags, "-c", str(source), "-o", str(made)])
        return str(made)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, sources))
    library = torch / "lib"
    run(
        [
            compiler(),
            "-shared",
            *objects,
            "-o",
            str(target),
            f"-L{library}",
            f"-Wl,-rpath,{library}",
            *LIBRARIES,
        ]
    )


def run(command: list[str]) -> None:
    """Run the compiler. Exits with what it says where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        stop(f"{command[0]} failed\n{done.stderr[-4000:]}")


class Build(build_ext):
    """The extension from the cache, or built and put there."""

    def build_extension(self, extension: Extension) -> None:
        """Put the library where setuptools looks for it."""
        headers = sorted((HERE / "csrc").glob("*/*.h"))
        sources = sorted((HERE / "csrc").glob("*/*.cpp"))
        kept = cached(headers + sources)
        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        if not kept.exists():
            compile_all(sources, Path(self.build_temp), target)
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_suffix(f".{os.getpid()}")
            shutil.copy2(target, part)
            part.replace(kept)  # whole or not at all, also where two build at once
        else:
            shutil.copy2(kept, target)


setup(ext_modules=[Extension("simulated_gpu._C", [])], cmdclass={"build_ext": Build})
