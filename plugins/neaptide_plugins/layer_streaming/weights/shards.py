"""Reads safetensors straight into tensors that are already there, be they larger than memory."""

from __future__ import annotations

import glob
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.checkpoint import TensorFile, canonical
from neaptide.checkpoint.verify import read_bytes
from neaptide.errors import CheckpointError, suggest
from neaptide_toolkit.export import INDEX, SINGLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_CHUNK = 2**18
"""Elements converted at a time: 2 MiB of the widest dtype."""
_MAX_INDEX = 100_000_000
_SHOWN = 3


@attrs.frozen(eq=False)
class Shards:
    """Tensors by name, in one safetensors file or several; `open` makes it.

    Every error is a CheckpointError of one line.
    """

    where: str
    """What was opened, for messages."""
    _files: dict[str, TensorFile]
    """By tensor."""

    @classmethod
    def open(cls, path: Path | str) -> Shards:
        """Read all headers, and no data.

        Args:
            path: a `.safetensors` file, an index (`.json`), a directory, or a pattern such as
                `dir/*.safetensors`. Of a directory it is `model.safetensors`, else what
                `model.safetensors.index.json` lists, else every safetensors file in it.

        Raises:
            CheckpointError: nothing is there, a header is damaged, two files have the same name,
                or the index does not match its files.
        """
        path = Path(path)
        index = path if path.suffix == ".json" else path / INDEX
        try:
            single = path.is_dir() and (path / SINGLE).exists()
            indexed = not single and index.is_file()
            listed = _read_index(index) if indexed else {}
            paths = _listed(index, listed) if indexed else _found(path / SINGLE if single else path)
            opened = {one: TensorFile(one.resolve()) for one in paths}  # caches hold symlinks
        except OSError as error:
            msg = f"cannot read {path}: {error.strerror}; check the path and its permissions"
            raise CheckpointError(msg) from error
        owners: dict[str, Path] = {}
        for one, file in opened.items():
            for name in file:
                other = owners.setdefault(name, one)
                if listed.get(name) == one.name:
                    owners[name] = one
                elif other != one and name not in listed:
                    msg = f"{name!r} is in {other} and in {one.name}; remove one, or name a file"
                    raise CheckpointError(msg)
        for name, where in listed.items():
            if name not in opened[index.parent / where]:
                msg = f"{index}: {name!r} is not in {where}, as it says; download both again"
                raise CheckpointError(msg)
        return cls(str(path), {name: opened[one] for name, one in owners.items()})

    def names(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(self._files)

    def info(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return dtype and shape of a tensor."""
        return self._file(name).info(name)

    def check(self, targets: Mapping[str, torch.Tensor], ignore: Iterable[str] = ()) -> None:
        """Raise unless the names are those of `targets`, and every tensor can be read into its own.

        Tied targets, which are the same tensor, are asked for under one of their names at least.

        Args:
            targets: where each tensor is to go.
            ignore: patterns of names, such as `*.inv_freq`, that may be missing or too many.
        """
        patterns = list(ignore)
        ids = {id(target) for name, target in targets.items() if name in self._files}
        missing = [name for name, target in targets.items() if id(target) not in ids]
        surplus = [name for name in self._files if name not in targets]
        for what, names, way_out in (
            ("lack", missing, "is it another model's? Write the files with it"),
            ("hold", surplus, "which the model has no place for; write the files without it"),
        ):
            left = [name for name in names if not any(fnmatchcase(name, one) for one in patterns)]
            if left:
                hint = suggest(left[0], self._files) if what == "lack" else ""
                msg = f"{self.where} {what} {_some(left)}{hint}: {way_out}"
                raise CheckpointError(msg)
        for name, target in targets.items():
            if name in self._files:
                self._check_one(name, target)

    def load(self, targets: Mapping[str, torch.Tensor], ignore: Iterable[str] = ()) -> None:
        """Check all, see `check`, then read each target once."""
        self.check(targets, ignore)
        done: set[int] = set()
        for name, target in targets.items():
            if name in self._files and id(target) not in done:
                done.add(id(target))
                self.read_into(name, target)

    @torch.no_grad()
    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Overwrite `out`, of any device and strides, with a tensor of its shape.

        Where dtypes differ, floating-point numbers are rounded. Bytes go straight to a contiguous
        tensor on the CPU, and otherwise through a few MiB. Raises before anything is written,
        unless the file is damaged or a number is too large for `out`.
        """
        self._check_one(name, out)
        file, (dtype, _) = self._file(name), self.info(name)
        # Detached, it shares the version that tells a graph which saved it of the change.
        out = out.detach()
        if not out.numel():
            return
        plain = out.device.type == "cpu" and not out.is_conj() and not out.is_neg()
        if plain and out.dtype == dtype and out.is_contiguous():
            file.read_into(name, out.view(-1).view(torch.uint8).numpy().data)
            if not out.is_inference():
                torch.autograd.graph.increment_version(out)
            return
        start, staged = 0, torch.empty(_CHUNK, dtype=dtype)
        for part in _parts(out):
            read = staged[: part.numel()]
            file.read_into(name, read.view(torch.uint8).numpy().data, start)
            start += read.nbytes
            if dtype != part.dtype:
                _check_range(read, part.dtype, f"{self.where}: {name!r}")
            part.copy_(read.view(part.shape))

    def _file(self, name: str) -> TensorFile:
        try:
            return self._files[name]
        except KeyError:
            hint = suggest(name, self._files)
            msg = f"{self.where} has no tensor {name!r}{hint}; it has {_some(self.names())}"
            raise CheckpointError(msg) from None

    def _check_one(self, name: str, target: torch.Tensor) -> None:
        dtype, shape = self.info(name)
        if shape != tuple(target.shape):
            msg = (
                f"{self.where}: {name!r} is {list(shape)}, the model's {list(target.shape)}; "
                "set the model's sizes as the file has them"
            )
            raise CheckpointError(msg)
        both_real = dtype.is_floating_point and target.dtype.is_floating_point
        if dtype != target.dtype and not both_real:
            msg = (
                f"{self.where}: {name!r} is {dtype}, the model's {target.dtype}; only "
                "floating-point numbers are converted, make the model's the same"
            )
            raise CheckpointError(msg)


def _found(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(path.glob("*.safetensors"))
    elif path.exists():
        found = [path]
    else:
        found = sorted(map(Path, glob.glob(str(path))))  # noqa: PTH207 - it may be absolute
    if not found:
        msg = f"{path}: no safetensors file is there; give a file, a directory or a pattern"
        raise CheckpointError(msg)
    return found


def _read_index(path: Path) -> dict[str, str]:
    """Return the file name of each tensor."""
    content = read_bytes(path.resolve(), _MAX_INDEX)
    match canonical.loads(content, str(path), total=len(content) * canonical.BYTES_A_KEY):
        case {"weight_map": {**found}} if found and all(map(_is_file_name, found.values())):
            return {str(name): str(file) for name, file in found.items()}
    msg = f"{path}: no index of safetensors: 'weight_map' gives no file beside it for each tensor"
    raise CheckpointError(msg)


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", "..") and not set(name) & {"/", "\0"}


def _listed(index: Path, listed: Mapping[str, str]) -> list[Path]:
    names = sorted(set(listed.values()))
    missing = [name for name in names if not (index.parent / name).exists()]
    if missing:
        msg = f"{index}: {_some(missing)} of {len(names)} files missing; download it again"
        raise CheckpointError(msg)
    return [index.parent / name for name in names]


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield views of at most `_CHUNK` elements that follow each other in row-major order."""
    if tensor.is_contiguous():
        yield from (tensor.view(-1)[at : at + _CHUNK] for at in range(0, tensor.numel(), _CHUNK))
    elif tensor.numel() <= _CHUNK:
        yield tensor
    else:
        rows = max(1, _CHUNK * len(tensor) // tensor.numel())
        for at in range(0, len(tensor), rows):
            yield from _parts(tensor[at : at + rows] if rows > 1 else tensor[at])


def _check_range(values: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    most = torch.finfo(dtype).max
    if most >= torch.finfo(values.dtype).max:
        return
    magnitudes = values.double().abs()
    beyond = magnitudes[magnitudes.isfinite() & (magnitudes > most)]
    if beyond.numel():
        msg = f"{what} holds {float(beyond[0]):.6g}, too large for {dtype}; use a wider dtype"
        raise CheckpointError(msg)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(f'{name!r:.100}' for name in names[:_SHOWN])}{more}"
