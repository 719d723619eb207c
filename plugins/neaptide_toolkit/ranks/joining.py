"""Joins a process to the others of its run, and lets only one of them tell what went wrong."""

from __future__ import annotations

import json
import logging
import os
import platform
import socket
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

from neaptide import checkpoint
from neaptide.checkpoint.manifest import installed_version
from neaptide.errors import ConfigError, NeaptideError, text_of
from neaptide.io.logging import CONSOLE
from neaptide.run.rundir import checkpoint_root
from neaptide.run.signals import Interrupted

from .group import PeerLostError, group_of
from .placing import backend_for, make_present, name_of, own_device, require_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neaptide.config import RunConfig

JOIN = 300.0
"""Longest wait for a process to start, in seconds."""
_PATIENCE = 10.0
"""Seconds in which the first process tells an error that others have, too."""
_TO_PRINT = 0.5
"""Seconds in which a process prints its error, before the end of another one ends it."""
_LOST, _GONE = "lost", "gone"
_LAST_WORDS = 3.0
"""Seconds in which another process tells why it has left."""


@contextmanager
def joined(
    rank: int, size: int, facts: Mapping[str, Any], seconds: float, device: str = "cpu"
) -> Iterator[Callable[[Any], Any]]:
    """Inside the context, this process is in the group of all processes of the run.

    Yields a function that returns, in all processes, the value that the first process gives it.

    Args:
        rank: the number of this process.
        size: number of processes.
        facts: what must be equal in all processes, as JSON values by name.
        seconds: longest wait for another process.
        device: where they train, as `train.device`. It is this process's present one afterwards.

    Raises:
        ConfigError: another process has other facts, or has not started, or has the same GPU.
        SystemExit: another process tells the error, or told it.
    """
    if rank:
        for name in (None, CONSOLE.name, "py.warnings"):
            logging.getLogger(name).setLevel(logging.ERROR)
    store = _store(rank, size)
    with _one_tells(store, rank, size, seconds):
        own = own_device(device)
        _compare(store, rank, size, {**facts, "the kind of device": own.type})
        _take(store, rank, size, own)
        backend = backend_for(own.type)
        with group_of(c10d.PrefixStore("group", store), rank, size, seconds, backend):

            def tell(value: Any) -> Any:
                if rank == 0:
                    store.set("told", json.dumps(value))
                return json.loads(_waited(store, "told", "the first process"))

            yield tell


def newest(config: RunConfig, resume: str | None) -> str | None:
    """Return the checkpoint that `resume` means; None for none.

    `auto` stays if no checkpoint is valid, so that the run tells why.
    """
    root = checkpoint_root(config.run)
    if resume != "auto" or root is None:
        return resume
    path, warnings = checkpoint.newest_valid(root)
    if path is None:
        return "auto" if warnings else None
    for warning in warnings:
        CONSOLE.warning("%s", warning)
    return str(path)


def _store(rank: int, size: int) -> c10d.Store:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        msg = f"WORLD_SIZE is {size}, but {missing[0]} is not set; start with torchrun or srun"
        raise ConfigError(msg)
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        socket.getaddrinfo(os.environ["MASTER_ADDR"], None)  # torch would ask again and again
        found: tuple[c10d.Store, int, int] = next(
            rendezvous("env://", rank, size, timeout=timedelta(seconds=JOIN))
        )
    except (RuntimeError, ValueError, OSError) as error:
        msg = f"process {rank} cannot reach the first process at {where}: {_first_line(error)}"
        raise ConfigError(msg) from error
    return c10d.PrefixStore("neaptide", found[0])


def _compare(store: c10d.Store, rank: int, size: int, facts: Mapping[str, Any]) -> None:
    """Raise ConfigError in all processes if one has other facts or versions."""
    versions = {"neaptide": installed_version(), "torch": torch.__version__}
    own = {**facts, **versions, "python": platform.python_version(), "processes": size}
    store.set(f"facts/{rank}", json.dumps(own))
    first = json.loads(_waited(store, "facts/0", "process 0"))
    problems = []
    for other in range(1, size):
        there = json.loads(_waited(store, f"facts/{other}", f"process {other}"))
        problems += [
            f"process {other} has {name} = {there.get(name)!r}, and process 0 has "
            f"{first.get(name)!r}; start all processes with the same"
            for name in sorted(first.keys() | there.keys())
            if first.get(name) != there.get(name)
        ]
    if problems:
        raise ConfigError(*problems[:4])


def _take(store: c10d.Store, rank: int, size: int, device: torch.device) -> None:
    """Make `device` the present one; ConfigError in all processes if two have the same."""
    if device.index is None:  # all are on the CPU
        return
    store.set(f"device/{rank}", name_of(device))
    names = [_waited(store, f"device/{one}", f"process {one}") for one in range(size)]
    require_apart(names, device.type)
    make_present(device)


def _waited(store: c10d.Store, key: str, whose: str) -> str:
    try:
        store.wait([key], timedelta(seconds=JOIN))
    except RuntimeError as error:
        msg = f"{whose} has not started within {JOIN:.0f} s, or is gone ({_first_line(error)})"
        raise PeerLostError(msg) from error
    value: bytes = store.get(key)
    return value.decode()


@contextmanager
def _one_tells(store: c10d.Store, rank: int, size: int, seconds: float) -> Iterator[None]:
    """Leave in silence if another process tells the error that ends the context.

    The first process tells what all have. A process that has only lost another one lets that one
    tell.
    """
    try:
        yield
    except BaseException as error:
        code = error.exit_code if isinstance(error, NeaptideError) else 1
        others = [other for other in range(size) if other != rank]
        kind = _LOST if isinstance(error, PeerLostError) else type(error).__name__
        _set(store, f"error/{rank}", kind)
        if rank == 0:
            silent = kind == _LOST and _told_by(store, others)
            # The others read why it leaves from the store, which may be this process's.
            _wait_for(lambda: all(_get(store, f"left/{one}") for one in others), _LAST_WORDS)
        elif kind == _LOST:
            silent = _told_by(store, others)
        else:
            # While the first process saves, this one waits: its end would end the others.
            patience = seconds if isinstance(error, Interrupted) else _PATIENCE
            first = _wait_for(lambda: _get(store, "error/0"), patience)
            silent = first in (kind, _GONE) or isinstance(error, Interrupted)
        _set(store, f"left/{rank}", kind)
        if silent:
            time.sleep(_TO_PRINT)
            raise SystemExit(code) from None
        if rank:
            error.add_note(f"raised in process {rank} of {size}")
        raise


def _told_by(store: c10d.Store, others: list[int]) -> bool:
    """Return whether another process tells its own error; wait for it."""

    def own() -> bool:
        return bool({_get(store, f"error/{one}") for one in others} - {"", _LOST, _GONE})

    return bool(_wait_for(own, _LAST_WORDS))


def _wait_for(found: Callable[[], Any], seconds: float) -> Any:
    """Return the first true value of `found()`, or its last after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := found()) and time.monotonic() < end:
        time.sleep(0.05)
    return value


def _set(store: c10d.Store, key: str, value: str) -> None:
    with suppress(RuntimeError):  # the process with the store is gone
        store.set(key, value)


def _get(store: c10d.Store, key: str) -> str:
    """Return the value of `key`; "" if there is none, and `_GONE` if the store is gone."""
    try:
        return bytes(store.get(key)).decode() if store.check([key]) else ""
    except RuntimeError:
        return _GONE


def _first_line(error: BaseException) -> str:
    return (text_of(error).strip().splitlines() or ["no reason given"])[0]
