"""Checkpoints: directories of safetensors and JSON files, written atomically, without pickle.

A digest of each file proves that no byte has changed. Functions that list, verify and prune
checkpoints do not need torch. The names in `_LAZY` import torch on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neaptide.renamed import attribute

from .catalog import checkpoints, newest_valid, prune, step_directory
from .files import writing
from .manifest import FileEntry, Manifest
from .recovery import recover
from .verify import read_manifest, verify

if TYPE_CHECKING:
    from .safetensors_header import TensorItem
    from .safetensors_stream import TensorFile
    from .store import Checkpoint, digest, load, save

__all__ = [
    "Checkpoint",
    "FileEntry",
    "Manifest",
    "TensorFile",
    "TensorItem",
    "checkpoints",
    "digest",
    "load",
    "newest_valid",
    "prune",
    "read_manifest",
    "recover",
    "save",
    "step_directory",
    "verify",
    "writing",
]

_LAZY = {
    **dict.fromkeys(("Checkpoint", "digest", "load", "save"), "store"),
    "TensorFile": "safetensors_stream",
    "TensorItem": "safetensors_header",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise attribute(__name__, name, ImportError)
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
