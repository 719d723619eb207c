"""Saves and loads sections of state and streams of large tensors; computes digests of state."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.errors import CheckpointError, WrongCheckpointError, suggest

from . import canonical
from .files import WAY, writing
from .recovery import exists, recover
from .safetensors_stream import ItemTuple, TensorFile, pieces, resident, write_tensors
from .tree import GetTensor, flatten, unflatten
from .verify import Identity, examine, read_bytes

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from .files import Writer
    from .manifest import Manifest
    from .safetensors_header import TensorItem

_STRUCTURE = ".json"
_TENSORS = ".safetensors"
_SHOWN = 5
_LARGE = 64 << 10


@attrs.frozen(eq=False)
class Checkpoint:
    """A verified checkpoint. Its sections and tensors are read on request.

    A read raises CheckpointError if the file has changed since it was verified.
    """

    directory: Path
    manifest: Manifest
    _identities: dict[str, Identity]

    def section(self, name: str) -> Any:
        """Return the tree of the section `name`; its tensors are in CPU memory."""
        return self._tree(name, lambda tensors: tensors.whole().__getitem__)

    def deferred(
        self, name: str, which: re.Pattern[str]
    ) -> tuple[Any, Callable[[torch.Tensor], torch.Tensor]]:
        """Return the tree of the section `name`, and a function that reads its large tensors.

        In the tree, zeros without memory of their own stand for each large tensor whose reference
        (see `tree.flatten`) matches `which`. For them, the function returns the tensor, new in CPU
        memory; any other tensor it returns as it is.
        """
        known: dict[int, tuple[torch.Tensor, Callable[[], torch.Tensor]]] = {}

        def stand_in(tensors: TensorFile, key: str) -> torch.Tensor:
            outline = tensors.outline(key)
            if outline.nbytes < _LARGE or not which.fullmatch(key):
                return tensors[key]
            number = torch.zeros((), dtype=outline.dtype)
            known[number.data_ptr()] = number, partial(tensors.__getitem__, key)
            return number.expand(outline.shape)

        def read(tensor: torch.Tensor) -> torch.Tensor:
            found = known.get(tensor.data_ptr())
            return tensor if found is None else found[1]()

        return self._tree(name, lambda tensors: partial(stand_in, tensors)), read

    def outline(self, name: str) -> Any:
        """Return the tree of the section `name`; its tensors are on the device `meta`."""
        return self._tree(name, lambda tensors: tensors.outline)

    def _tree(self, name: str, how: Callable[[TensorFile], GetTensor]) -> Any:
        identity = self._identity(name, _STRUCTURE)
        path = self.directory / f"{name}{_STRUCTURE}"
        text = read_bytes(path, identity.bytes, identity)
        total = sum(entry.bytes for entry in self.manifest.files.values())
        structure = canonical.loads(text, str(path), total)
        has_tensors = f"{name}{_TENSORS}" in self._identities
        get_tensor = how(self.tensors(name)) if has_tensors else dict[str, Any]().__getitem__
        try:
            return unflatten(structure, get_tensor)
        except CheckpointError as error:
            msg = f"{path}: {error}"
            raise CheckpointError(msg) from error

    def tensors(self, name: str) -> TensorFile:
        """Return the tensors of the stream or section `name`. Each tensor is read on access."""
        identity = self._identity(name, _TENSORS)
        return TensorFile(self.directory / f"{name}{_TENSORS}", identity)

    def sections(self) -> list[str]:
        """Return the names of the sections, sorted."""
        return self._names(_STRUCTURE)

    def _names(self, suffix: str) -> list[str]:
        return sorted(one.removesuffix(suffix) for one in self._identities if one.endswith(suffix))

    def _identity(self, name: str, suffix: str) -> Identity:
        try:
            return self._identities[f"{name}{suffix}"]
        except KeyError:
            known = self._names(suffix)
            msg = f"checkpoint {self.directory} has no {name!r}{suggest(name, known)}; has {known}"
            raise CheckpointError(msg) from None


def save(
    directory: Path,
    sections: Mapping[str, Any],
    step: int,
    facts: Mapping[str, Any],
    streams: Mapping[str, Iterable[TensorItem | ItemTuple]] | None = None,
) -> None:
    """Write the checkpoint `directory`; replace an older checkpoint as `files.writing` does.

    A section is a tree (see `tree.flatten`). Its file is `<name>.json`. If the tree has tensors,
    they are in `<name>.safetensors`. A stream is one file `<name>.safetensors`, written one tensor
    at a time, for models larger than memory. Raises CheckpointError.
    """

    def fill(writer: Writer) -> None:
        keys = {}
        for name, tree in sections.items():
            structure, tensors = flatten(tree, name)
            text = canonical.dumps(structure, sort_keys=False)
            canonical.check_size(text, name)
            keys[name] = text.count(b":")
            with writer.file(f"{name}{_STRUCTURE}") as file:
                file.write(text)
            if tensors:
                with writer.file(f"{name}{_TENSORS}") as file:
                    write_tensors(file, [resident(*named) for named in tensors.items()])
        for name, items in (streams or {}).items():
            with writer.file(f"{name}{_TENSORS}") as file:
                write_tensors(file, items)
        for name, number in keys.items():
            canonical.check_keys(number, name, writer.bytes)

    WAY.get()(directory, writing(directory, step, facts), fill)


def load(directory: Path) -> Checkpoint:
    """Verify every byte of the checkpoint at `directory` and return it.

    Raises WrongCheckpointError if there is no checkpoint. Raises CheckpointError if the checkpoint
    is damaged.
    """
    recover(directory)
    if not exists(directory):
        msg = f"there is no checkpoint {directory}; neaptide ckpt list RUN shows those of a run"
        raise WrongCheckpointError(msg)
    found = examine(directory)
    if found.manifest is None or found.problems:
        shown = "; ".join(found.problems[:_SHOWN])
        more = f"; {len(found.problems) - _SHOWN} more" if len(found.problems) > _SHOWN else ""
        msg = f"cannot load checkpoint {directory}: {shown}{more}; load an older checkpoint"
        raise CheckpointError(msg)
    return Checkpoint(directory, found.manifest, found.identities)


def digest(tree: Any) -> str:
    """Return the sha256 (64 hexadecimal digits) of a state tree.

    If two digests are equal, the states are bitwise equal. The digest covers types, keys and
    values, and the dtype, shape and bytes of tensors. It does not depend on the order of dict keys,
    on devices, strides, shared memory or requires_grad. Raises CheckpointError for a value
    that `tree.flatten` refuses.
    """
    structure, tensors = flatten(tree)
    sha256 = hashlib.sha256(canonical.dumps(structure))
    for name, tensor in sorted(tensors.items()):
        # A label fixes the number of bytes after it, so the end of each tensor is unambiguous.
        label = [name, str(tensor.dtype), list(tensor.shape)]
        sha256.update(b"\n" + canonical.dumps(label) + b"\n")
        for piece in pieces(tensor):
            sha256.update(piece)
    return sha256.hexdigest()
