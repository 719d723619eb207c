"""The last list of ops, kept until something changes that it may depend on. Read without torch.

torch alone takes more than a second to import.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neaptide.errors import NeaptideError
from neaptide.io.folder import replace_file
from neaptide_kernels.places import default_path

if TYPE_CHECKING:
    from collections.abc import Iterator

_DISTRIBUTIONS = ("torch", "triton", "pytorch-triton", "numba", "liger-kernel", "neaptide")
_GROUPS = ("neaptide.plugins", "neaptide.kernels")
_VARIABLES = ("NEAPTIDE_", "TRITON_", "CUDA_", "HIP_", "ROCR_", "ZE_", "NUMBA_")
_DEVICES = ("nvidia[0-9]*", "kfd", "dri/renderD*", "dxg")
_DRIVER = Path("/proc/driver/nvidia/version")


def kept(device: str | None) -> tuple[list[dict[str, Any]], list[str]] | None:
    """Return the list for `--device`, and no notes; None if none is kept, or something changed."""
    try:
        found = json.loads(_path(device).read_text(encoding="utf-8"))
        same = found["state"] == _state()
        return (found["ops"], []) if same else None
    except (OSError, ValueError, KeyError, TypeError, NeaptideError):
        return None


def keep(device: str | None, rows: list[dict[str, Any]]) -> None:
    """Keep a list; without effect if no folder can be written."""
    try:
        path = _path(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps({"state": _state(), "ops": rows}).encode())
    except (OSError, NeaptideError):
        return


def _path(device: str | None) -> Path:
    return default_path().with_name(f"kernels-list-{device or 'default'}.json")


def _state() -> str:
    return hashlib.sha256("\n".join(_facts()).encode()).hexdigest()


def _facts() -> Iterator[str]:
    """Yield all that a list may depend on: installed code, settings, timings, devices."""
    yield sys.version
    for name in _DISTRIBUTIONS:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"no {name}"
    packages = set()
    for point in sorted(each for group in _GROUPS for each in entry_points(group=group)):
        yield str(point)
        packages.add(point.value.partition(":")[0].partition(".")[0])
    for package in sorted(packages):
        spec = find_spec(package)
        for folder in sorted((spec and spec.submodule_search_locations) or ()):
            for file in sorted(Path(folder).rglob("*.py")):
                yield _stat(file)
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES):
            yield f"{name}={value}"
    yield _stat(default_path())
    yield _DRIVER.read_text(encoding="utf-8") if _DRIVER.exists() else "no driver"
    for pattern in _DEVICES:
        yield from sorted(str(path) for path in Path("/dev").glob(pattern))


def _stat(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return f"{path}: none"
    return f"{path}: {found.st_mtime_ns} {found.st_size}"
