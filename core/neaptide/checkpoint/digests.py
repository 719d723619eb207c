"""One sha256 over a state: equal digests mean bitwise equal states."""

from __future__ import annotations

import hashlib
from typing import Any

from . import canonical
from .safetensors_stream import pieces
from .tree import flatten


def digest(tree: Any) -> str:
    """Return the sha256 (64 hexadecimal digits) of a state tree; tensors are read in pieces.

    Covers types, keys, values, and of tensors dtypes, shapes and bytes. The order of dict keys does
    not matter, nor do device, strides, sharing and requires_grad. Raises CheckpointError for what
    `tree.flatten` refuses.
    """
    structure, tensors = flatten(tree)
    sha256 = hashlib.sha256(canonical.dumps(structure))
    for name, tensor in sorted(tensors.items()):
        # The labels, which give the number of bytes that follow, keep neighbours apart.
        label = [name, str(tensor.dtype), list(tensor.shape)]
        sha256.update(b"\n" + canonical.dumps(label) + b"\n")
        for piece in pieces(tensor):
            sha256.update(piece)
    return sha256.hexdigest()
