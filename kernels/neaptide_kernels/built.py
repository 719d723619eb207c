"""Functions that torch's AOTInductor compiles into files, once per machine.

`neaptide kernels tune` builds them: each takes some seconds and a C++ compiler. A later process
loads a file in a few milliseconds, and compiles nothing. torch's own threads run the code.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import platform
import warnings
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from neaptide.io.folder import replace_file
from neaptide_kernels.accelerator import name_of
from neaptide_kernels.places import default_path
from neaptide_kernels.registry import KernelError, Provider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neaptide_kernels.registry import Query, Support

LEAST = 2
"""The smallest size of a dimension that may have several."""
_FEWEST = 1 << 20
"""Elements that are worth loading a function, without timings."""


@attrs.frozen
class Recipe:
    """A function of tensors, and what it is compiled for."""

    name: str
    """The name of its file: of the op, the dtypes, and whatever else it is compiled for."""
    function: Callable[..., Any]
    example: Callable[[], tuple[torch.Tensor, ...]]
    """Makes arguments. The function takes others, too, of these dtypes and fixed sizes."""
    sizes: tuple[Mapping[int, str], ...]
    """For each argument the dimensions that may have other sizes, each with a name for its size."""


def provider(
    op: str,
    run: Callable[..., Any],
    recipe_of: Callable[[Query], Recipe | str],
    *,
    workspace_bytes: Callable[[Query], int] = lambda _: 0,
) -> Provider:
    """Return the provider `inductor` of an op.

    `recipe_of` returns what a call needs, or the reason why the call is not supported.
    """

    def supports(query: Query) -> Support:
        recipe = _on_host(query, recipe_of)
        if isinstance(recipe, str):
            return recipe
        return _path_of(recipe).exists() or f"it is not built: neaptide kernels tune {op}"

    def build(query: Query) -> None:
        recipe = _on_host(query, recipe_of)
        if not isinstance(recipe, str) and not _is_whole(_path_of(recipe)):
            _build(recipe)

    return Provider(
        op=op,
        name="inductor",
        run=run,
        supports=supports,
        build=build,
        priority=1,
        fewest=lambda _: _FEWEST,
        workspace_bytes=workspace_bytes,
    )


def function(recipe: Recipe) -> Callable[..., list[torch.Tensor]]:
    """Return a function that is built. What it changes must be contiguous."""
    loaded = _loaded(_path_of(recipe))

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        # The code has the strides of its example: it would read others as if they were these.
        results: list[torch.Tensor] = loaded.boxed_run([one.contiguous() for one in tensors])
        return results

    return run


def short(dtype: torch.dtype) -> str:
    """Return the name of a dtype, as a part of a recipe's name."""
    return str(dtype).removeprefix("torch.")


def _on_host(query: Query, recipe_of: Callable[[Query], Recipe | str]) -> Recipe | str:
    return recipe_of(query) if query.device == "cpu" else "it runs on a CPU only"


def _build(recipe: Recipe) -> None:
    path = _path_of(recipe)
    logging.getLogger("neaptide").warning(
        "%s is built for this CPU, once: it takes some seconds", recipe.name
    )
    names = {name for sizes in recipe.sizes for name in sizes.values()}
    dims = {name: torch.export.Dim(name, min=LEAST) for name in names}
    sizes = [{place: dims[name] for place, name in each.items()} for each in recipe.sizes]
    content = io.BytesIO()  # a file that torch writes on a full disk ends the process
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        program = torch.export.export(
            _Called(recipe.function), recipe.example(), dynamic_shapes=(tuple(sizes),)
        )
        torch._inductor.aoti_compile_and_package(  # noqa: SLF001 - documented so
            program,
            package_path=content,
            inductor_configs={"cpp.dynamic_threads": True},  # as torch.set_num_threads says
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content.getvalue())
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}; set NEAPTIDE_CACHE_DIR elsewhere"
        raise KernelError(msg) from error


def _is_whole(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as parts:
            return parts.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


@cache
def _loaded(path: Path) -> Any:
    if not _is_whole(path):  # torch does not look, and damaged code may end the process
        msg = f"{path} is damaged: neaptide kernels tune builds it anew"
        raise KernelError(msg)
    # `aoti_load_package` calls this, but first it imports torch's whole compiler: seconds.
    return torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)  # noqa: SLF001


def _path_of(recipe: Recipe) -> Path:
    return default_path().parent / "built" / f"{_machine()}-{_code()}" / f"{recipe.name}.pt2"


@cache
def _code() -> str:
    """Return a name for the code that is compiled: a newer Neaptide may have other references."""
    folder = Path(__file__).parent
    files = sorted([*folder.glob("*/reference.py"), *folder.glob("*/on_inductor.py")])
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in (*files, Path(__file__))))
    return digest.hexdigest()[:12]


@cache
def _machine() -> str:
    """Return a name for the processor and the version of torch, for which code is compiled."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    facts = (name_of("cpu"), platform.machine(), platform.processor(), flags, os.name)
    digest = hashlib.sha256("|".join(facts).encode()).hexdigest()[:12]
    return f"{torch.__version__}-{digest}"


class _Called(nn.Module):
    """A function as the module that `torch.export` asks for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call the function."""
        return self._function(*tensors)
