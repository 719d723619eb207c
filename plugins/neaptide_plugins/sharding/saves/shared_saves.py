"""Saves that all processes write: each its own rows, at their places in the same files.

The process that saves has no whole tensors: numbers without memory stand for them, whose places
stay empty in the files until all processes have written their rows. A sha256 of parts cannot be
joined, so each file is read again, by one process: another process for each file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.checkpoint import FileEntry
from neaptide.checkpoint.files import WAY, at_once
from neaptide.checkpoint.safetensors_stream import pieces
from neaptide.checkpoint.tree import flatten
from neaptide.io.folder import Folder
from neaptide_plugins.sharding.meetings import LoanRequest

from .shared_files import SharedFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from neaptide import Run
    from neaptide.api.middleware import AroundSave
    from neaptide.api.spans import Span
    from neaptide.checkpoint.files import Writer
    from neaptide_plugins.sharding.meetings import Meetings
    from neaptide_plugins.sharding.state_parts import StateParts
    from neaptide_toolkit.ranks.group import Ranks

    from .shared_files import SharedFile

WEIGHTS, STATE = "weights.safetensors", "optimizer.safetensors"
_COPIES = "background-save"
"""Copies what is saved, so the process has to have all of it."""
_BITS, _NUMBERS = 43, 6
"""Bits of a sha256 in one number of an exchange, and how many numbers have all of it."""


@attrs.define(eq=False)
class SharedSaves:
    """The part of one process in the saves of all.

    Attributes:
        ranks: all processes.
        meetings: their exchanges.
        state: the rows of the optimizer's state.
        weight: returns this process's rows of a weight, by its name; None if it has all of them.
        size: how many processes have a copy of the model. Each copy writes some of the tensors.
    """

    ranks: Ranks
    meetings: Meetings
    state: StateParts
    weight: Callable[[str], torch.Tensor] | None
    size: int
    _directory: Path | None = None
    _apart: dict[str, dict[str, tuple[int, str]]] = attrs.field(factory=dict)
    """Of each shared file the tensors that are left out: the number of the span, and the key of an
    entry of its state; "" is the weight."""
    _filling: bool = False
    _told: bytes = b""
    """What this process tells the others, when they ask what it wants."""
    _unreached: dict[Path, list[int]] = attrs.field(factory=dict)

    def around(self, run: Run) -> AroundSave | None:
        """Return the middleware that lets all processes write a checkpoint, if they reach it."""
        if _COPIES in run.config.plugins:
            return None

        def save(following: Callable[..., Path], /, *, directory: Path) -> Path:
            parent = directory.absolute().parent
            new, missing = parent not in self._unreached, self._reach(parent)
            if not missing:
                with self._shared(directory):
                    return following(directory=directory)
            if new:
                reason = (
                    f"process {missing[0]} does not find {parent}, or not as the same directory"
                )
                run.log.warning("sharding.saves_alone", reason=reason)
            return following(directory=directory)

        return save

    def _reach(self, parent: Path) -> list[int]:
        """Return the numbers of the processes that do not find the directory `parent`."""
        if parent not in self._unreached:
            with suppress(OSError), closing(Folder(parent, make=True)):
                pass  # a save tells why it cannot be made
            self._told = json.dumps([str(parent), _inode(parent)]).encode()
            request = LoanRequest(self.ranks.rank, "reach", writes=False)
            self._unreached[parent] = self.meetings.borrow(request)
        return self._unreached[parent]

    @contextmanager
    def _shared(self, directory: Path) -> Iterator[None]:
        """Within this context, what is saved to `directory` is written by all processes."""
        self._directory, self._apart = directory, {}
        token = WAY.set(self._write_together)
        try:
            yield
        finally:
            WAY.reset(token)
            self._directory = None

    @contextmanager
    def state_or(
        self,
        whole: Callable[[], AbstractContextManager[dict[str, Any]]],
        numbered: Callable[[], Mapping[int, Span]],
    ) -> Iterator[dict[str, Any]]:
        """Lend the optimizer's `state_dict`: outlined in a save of all processes, else `whole`."""
        if self._directory is not None and WAY.get() == self._write_together:
            yield self.outlined(numbered())
        else:
            with whole() as lent:
                yield lent

    @property
    def is_filling(self) -> bool:
        """Whether a weight that is read now is for a file that all processes write."""
        return self._filling

    def outlined(self, numbered: Mapping[int, Span]) -> dict[str, Any]:
        """Return the optimizer's `state_dict` with numbers without memory for what is divided."""
        whole = dict(self.state.optimizer.state_dict())
        whole["state"] = dict(whole["state"])
        parts: dict[int, Any] = {}
        named: list[tuple[int, str]] = []
        for index, span in numbered.items():
            entry, divided = self.state.outline(span.name)
            if entry:
                whole["state"][index] = entry
            parts[index] = {key: entry[key] for key in divided}
            named += [(self.state.numbers[span.name], key) for key in divided]
        _, references = flatten({"state": parts})
        self._apart[STATE] = dict(zip(references, named, strict=True))
        return whole

    def _write_together(
        self,
        directory: Path,
        context: AbstractContextManager[Writer],
        fill: Callable[[Any], None],
    ) -> None:
        if directory != self._directory:  # frozen weights, to which the checkpoint refers
            at_once(directory, context, fill)
            return
        if self.weight is not None:
            self._apart[WEIGHTS] = {name: (one, "") for name, one in self.state.numbers.items()}
        with context as writer:
            files = SharedFiles(writer, self._apart)
            self._filling = True
            try:
                fill(files)
            finally:
                self._filling = False
            self._ask_all(files.made)

    def _ask_all(self, made: Sequence[SharedFile]) -> None:
        """Let all processes write their rows; take the digests of the files."""
        if not made:
            return
        files = [
            [one.name, [[*self._apart[one.name][name], at] for name, at in one.places.items()]]
            for one in made
        ]
        self._told = json.dumps([str(made[0].folder.path), files]).encode()
        found = self.meetings.borrow(LoanRequest(self.ranks.rank, "save", writes=False))
        for one, digest in zip(made, found, strict=True):
            one.found = FileEntry(digest, one.bytes)

    def serve(self, request: LoanRequest) -> list[Any]:
        """Do what a process asks for, in all processes at once.

        Raises:
            OSError: in the process that asks: another one cannot write.
        """
        place, what = json.loads(self.ranks.tell(self._told, request.number))
        if request.of == "reach":
            found = self.ranks.exchange("saved", [_inode(Path(place)) == what])
            return [rank for rank, (there,) in enumerate(found) if not there]
        asks = request.number == self.ranks.rank
        if not self._agree(_failing(partial(self._write_rows, Path(place), what)), asks=asks):
            return []
        digests: dict[str, str] = {}
        names = [name for name, _ in what]
        own = [name for one, name in enumerate(names) if self.ranks.rank in self._readers(one)]
        if not self._agree(_failing(lambda: digests.update(_digests(Path(place), own))), asks=asks):
            return []
        told = [self._told_digests(digests.get(name)) for name in names]
        return [self._same(number, rows) for number, rows in enumerate(told)] if asks else []

    def _readers(self, number: int) -> set[int]:
        """Return the processes that read a file: with several nodes two, which see the same."""
        first, size = number % self.ranks.size, self.ranks.size
        is_one_node = os.environ.get("LOCAL_WORLD_SIZE", str(size)) == str(size)
        return {first} if is_one_node else {first, (first + size // 2) % size}

    def _agree(self, problem: int, *, asks: bool) -> bool:
        """Tell the others whether this process has failed; return whether none has.

        Raises:
            OSError: one has, and this process asks for the save.
        """
        problems = [int(number) for (number,) in self.ranks.exchange("saved", [problem])]
        for rank, number in enumerate(problems):
            if number and asks:
                told = f"{os.strerror(number)}, on process {rank}"
                raise OSError(number, told)
        return not any(problems)

    def _told_digests(self, own: str | None) -> list[str]:
        """Return the digest of a file that each process has computed; zeros if it has none."""
        mask = (1 << _BITS) - 1
        parts = [int(own or "0", 16) >> _BITS * place & mask for place in range(_NUMBERS)]
        rows = self.ranks.exchange("saved", parts)
        return [f"{sum(int(one) << _BITS * i for i, one in enumerate(row)):064x}" for row in rows]

    def _same(self, number: int, digests: Sequence[str]) -> str:
        """Return the digest of a file; OSError if two processes have read different bytes."""
        readers = sorted(self._readers(number))
        if len({digests[rank] for rank in readers}) > 1:
            told = (
                f"processes {' and '.join(map(str, readers))} read different bytes of one file, so "
                f'the file system does not keep what several write; set saves = "first" @ '
                f"plugins.sharding.saves"
            )
            raise OSError(errno.EIO, told)
        return digests[readers[0]]

    def _rows_of(self, name: str) -> torch.Tensor:
        assert self.weight is not None, "weights are left out if they are divided"
        return self.weight(name)

    def _write_rows(self, directory: Path, files: Sequence[Any]) -> None:
        """Write this process's rows of what its copy of the model writes."""
        names, copies = [*self.state.numbers], self.ranks.size // self.size
        with closing(Folder(directory, link=False)) as folder:
            for file, places in files:
                own = places[self.ranks.rank // self.size :: copies]
                with os.fdopen(folder.open(file, os.O_WRONLY), "wb") as opened:
                    for number, key, start in own:
                        name = names[number]
                        rows = self.state.part(name, key) if key else self._rows_of(name)
                        opened.seek(start + self.state.rows[name].offset(rows.dtype.itemsize))
                        for piece in pieces(rows):
                            opened.write(piece)
                    opened.flush()
                    os.fsync(opened.fileno())


def _failing(work: Callable[[], object]) -> int:
    """Do some work; return the number of the system's error, or 0."""
    try:
        work()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _digests(directory: Path, names: Sequence[str]) -> dict[str, str]:
    found = {}
    with closing(Folder(directory, link=False)) as folder:
        for name in names:
            with os.fdopen(folder.open(name), "rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _inode(directory: Path) -> int:
    """Return the number of a directory in its file system; -1 if there is none."""
    try:
        return directory.stat().st_ino
    except OSError:
        return -1
