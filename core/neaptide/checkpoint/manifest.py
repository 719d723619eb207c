"""The manifest of a checkpoint: step, facts, and the size and sha256 of every file."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.errors import CheckpointError

from . import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST = "manifest.json"
MAX_BYTES = 4 * 2**20
FORMAT = 1

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


STEP = re.compile(r"step-(\d{8,})")
"""The names of checkpoints in `checkpoints/` of a run directory."""


@attrs.frozen
class FileEntry:
    """The sha256 (64 hexadecimal digits) and the size in bytes of one data file."""

    sha256: str
    bytes: int


@attrs.frozen
class Manifest:
    """The content of a checkpoint's `manifest.json`."""

    neaptide: str
    """The version of Neaptide that wrote the checkpoint."""
    step: int
    files: dict[str, FileEntry]
    facts: dict[str, Any]
    """Any plain JSON. A run saves its phase's name, and its plugins' names and versions."""


def check_name(name: str) -> str:
    """Return `name` if a data file may have this name; otherwise raise CheckpointError."""
    if not _NAME.fullmatch(name) or name == MANIFEST:
        msg = f"{name!r} cannot name a file of a checkpoint; use letters, digits, '.', '_' and '-'"
        raise CheckpointError(msg)
    return name


def check_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return `facts` as a dict; raise CheckpointError if JSON cannot restore them exactly."""
    plain = dict(facts)
    try:
        same = canonical.loads(canonical.dumps(plain), "facts") == plain
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"the facts of a checkpoint must be plain JSON: {error}"
        raise CheckpointError(msg) from error
    if not same:
        msg = "the facts of a checkpoint must be plain JSON: string keys, and lists for tuples"
        raise CheckpointError(msg)
    return plain


@cache
def installed_version() -> str:
    """Return the version of the installed Neaptide, or `unknown` if it is not installed."""
    try:
        return metadata.version("neaptide")
    except metadata.PackageNotFoundError:
        return "unknown"


def render(manifest: Manifest) -> bytes:
    """Return the text of `manifest.json`; raise CheckpointError if `parse` could not read it."""
    value = {"format": FORMAT, **attrs.asdict(manifest)}
    text = canonical.dumps({**value, "sha256": _digest(value)}, indent=1) + b"\n"
    canonical.check_size(text, MANIFEST)
    if len(text) > MAX_BYTES:
        msg = f"{MANIFEST} would have {len(text)} bytes, at most {MAX_BYTES}; shorten the facts"
        raise CheckpointError(msg)
    return text


def parse(text: bytes, where: str) -> Manifest:
    """Return the manifest in `text`; raise CheckpointError if `render` cannot have written it."""
    value = canonical.loads(text, where)
    if not isinstance(value, dict):
        msg = f"{where}: not a manifest"
        raise CheckpointError(msg)
    claimed = value.pop("sha256", None)
    try:
        intact = claimed == _digest(value)
    except RecursionError:
        intact = False
    if not intact:
        msg = f"{where}: damaged, its sha256 does not match"
        raise CheckpointError(msg)
    match value:
        case {
            "format": 1,
            "neaptide": str(version),
            "step": int(step),
            "files": dict(files),
            "facts": dict(facts),
            **extra,
        } if not extra and type(step) is int and step >= 0:
            entries = {name: _entry(files[name], name, where) for name in files}
            found = Manifest(version, step, entries, facts)
            if render(found) != text:
                msg = f"{where}: damaged, it is not byte for byte what was written"
                raise CheckpointError(msg)
            return found
    msg = f"{where}: format {value.get('format')!r} cannot be read; this Neaptide reads {FORMAT}"
    raise CheckpointError(msg)


def _entry(value: Any, name: str, where: str) -> FileEntry:
    try:
        check_name(name)
    except CheckpointError as error:
        msg = f"{where}: {error}"
        raise CheckpointError(msg) from None
    match value:
        case {"sha256": str(sha256), "bytes": int(size), **extra} if (
            not extra and _SHA256.fullmatch(sha256) and type(size) is int and size >= 0
        ):
            return FileEntry(sha256, size)
    msg = f"{where}: no sha256 and size for the file {name!r}"
    raise CheckpointError(msg)


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(canonical.dumps(value)).hexdigest()
