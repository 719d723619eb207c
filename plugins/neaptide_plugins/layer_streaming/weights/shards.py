"""Reads safetensors directly into existing tensors, also from files larger than memory."""

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
"""Number of elements converted at a time: 2 MiB of the widest dtype."""
_MAX_INDEX = 100_000_000
_SHOWN = 3


@attrs.frozen(eq=False)
class Shards:
    """The tensors of one or several safetensors files, by name. `open` creates the object.

    Every error is a CheckpointError with a message of one line.
    """

    where: str
    """The opened path, for messages."""
    _files: dict[str, TensorFile]
    """The file of each tensor, by name."""

    @classmethod
    def open(cls, path: Path | str) -> Shards:
        """Read all headers, and no data.

        Args:
            path: a `.safetensors` file, an index (`.json`), a directory, or a pattern such as
                `dir/*.safetensors`. In a directory the method opens `model.safetensors`, else the
                files listed in `model.safetensors.index.json`, else all safetensors files.

        Raises:
            CheckpointError: no file is found, a header is damaged, a tensor is in two files, or
                the index does not match its files.
        """
        path = Path(path)
        index = path if path.suffix == ".json" else path / INDEX
        try:
            single = path.is_dir() and (path / SINGLE).exists()
            indexed = not single and index.is_file()
            listed = _read_index(index) if indexed else {}
            paths = _listed(index, listed) if indexed else _found(path / SINGLE if single else path)
            opened = {one: TensorFile(one.resolve()) for one in paths}  # may be symlinks in caches
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
                    msg = f"{name!r} is in {other} and in {one.name}; remove one, or give one file"
                    raise CheckpointError(msg)
        for name, where in listed.items():
            if name not in opened[index.parent / where]:
                msg = f"{index}: {name!r} is listed in {where}, but not there; download both again"
                raise CheckpointError(msg)
        return cls(str(path), {name: opened[one] for name, one in owners.items()})

    def names(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(self._files)

    def info(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return dtype and shape of a tensor."""
        return self._file(name).info(name)

    def check(self, targets: Mapping[str, torch.Tensor], ignore: Iterable[str] = ()) -> None:
        """Raise an error if a tensor is missing, is not in `targets` or does not fit its target.

        If one tensor is in `targets` under several names (tied weights), the files need only one
        of these names.

        Args:
            targets: by name, the tensor to which the values will be copied.
            ignore: patterns of names, such as `*.inv_freq`. A tensor with such a name may be
                missing in the files or in `targets`.
        """
        patterns = list(ignore)
        ids = {id(target) for name, target in targets.items() if name in self._files}
        missing = [name for name, target in targets.items() if id(target) not in ids]
        surplus = [name for name in self._files if name not in targets]
        for what, names, way_out in (
            ("lack", missing, "write the files from the same model"),
            ("hold", surplus, "the model has no such tensor; write the files without it"),
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
        """Call `check`, then read the values of each target once."""
        self.check(targets, ignore)
        done: set[int] = set()
        for name, target in targets.items():
            if name in self._files and id(target) not in done:
                done.add(id(target))
                self.read_into(name, target)

    @torch.no_grad()
    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Overwrite `out`, on any device and with any strides, with the tensor `name`.

        The shapes must be equal. If the dtypes differ, floating-point numbers are rounded. A
        contiguous CPU tensor of the same dtype is read directly. Any other tensor is read through a
        buffer of a few MiB. Errors are raised before `out` is written, with two exceptions: a
        damaged file, and a number that is too large for the dtype of `out`.
        """
        self._check_one(name, out)
        file, (dtype, _) = self._file(name), self.info(name)
        # The detached tensor shares the version counter, so graphs that saved `out` see the change.
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
                "build the model with the sizes of the file"
            )
            raise CheckpointError(msg)
        both_real = dtype.is_floating_point and target.dtype.is_floating_point
        if dtype != target.dtype and not both_real:
            msg = (
                f"{self.where}: {name!r} is {dtype}, the model's {target.dtype}; only "
                "floating-point numbers are converted; build the model with that dtype"
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
        msg = f"{path}: no safetensors file found; give a file, a directory or a pattern"
        raise CheckpointError(msg)
    return found


def _read_index(path: Path) -> dict[str, str]:
    """Return the file name of each tensor, read from the index."""
    content = read_bytes(path.resolve(), _MAX_INDEX)
    match canonical.loads(content, str(path), total=len(content) * canonical.BYTES_A_KEY):
        case {"weight_map": {**found}} if found and all(map(_is_file_name, found.values())):
            return {str(name): str(file) for name, file in found.items()}
    msg = f"{path}: not an index of safetensors: 'weight_map' must give a file name for each tensor"
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
    """Yield consecutive views, in row-major order, of at most `_CHUNK` elements each."""
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
