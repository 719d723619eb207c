"""Where each process of a run trains, and by which libraries they exchange tensors."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from neaptide.devices import api_of
from neaptide.errors import ConfigError
from neaptide.run.assembly import choose_device

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMBERS = "gloo"
"""The library by which processes exchange numbers, and tensors of a CPU."""
_WAY_OUT = 'or set train.device = "cpu" @ train.device'


def own_device(wanted: str) -> torch.device:
    """Return the device of this process: of those of a kind, the one with the number LOCAL_RANK.

    If only one is visible, it is that one: SLURM can give each process a device of its own.

    Args:
        wanted: the value of `train.device`.

    Raises:
        ConfigError: there is no such device for this process.
    """
    device = choose_device(wanted, None)
    if device.type == "cpu":
        return device
    kind, count = device.type, api_of(device).device_count()
    if device.index is not None:
        msg = (
            f"each of several processes has a device of its own (got {wanted!r}); set "
            f'train.device = "{kind}", {_WAY_OUT}'
        )
        raise ConfigError(msg)
    if count == 1:
        return torch.device(kind, 0)
    number, processes = (os.environ.get(f"LOCAL_{one}", "") for one in ("RANK", "WORLD_SIZE"))
    if not (number.isdecimal() and processes.isdecimal()):
        msg = (
            f"a process does not know which of the {count} {kind.upper()} devices is its own "
            f"(LOCAL_RANK, LOCAL_WORLD_SIZE); start with torchrun or srun, {_WAY_OUT}"
        )
        raise ConfigError(msg)
    if int(processes) > count or int(number) >= count:
        msg = (
            f"this machine has {count} {kind.upper()} devices for {processes} processes; start at "
            f"most {count} on it, {_WAY_OUT}"
        )
        raise ConfigError(msg)
    return torch.device(kind, int(number))


def backend_for(kind: str) -> str:
    """Return torch's name of the libraries for processes that train on devices of a kind.

    Raises:
        ConfigError: this torch has none.
    """
    if kind == "cpu":
        return NUMBERS
    found = dist.Backend.default_device_backend_map.get(kind, NUMBERS)
    if found == NUMBERS or not dist.is_backend_available(found):
        msg = (
            f"this torch has no library that exchanges tensors of {kind.upper()} devices between "
            f"processes; start one process, {_WAY_OUT}"
        )
        raise ConfigError(msg)
    return f"cpu:{NUMBERS},{kind}:{found}"


def require_backend(device: torch.device) -> None:
    """Raise ConfigError if the group of all processes exchanges no numbers, or no such tensors."""
    needed = backend_for(device.type)
    pairs = [part.partition(":") for part in dist.get_backend_config().split(",")]
    backends = {kind: name for kind, _, name in pairs}
    own = backends.get(device.type, "")
    if "cpu" not in backends or not own or (device.type != "cpu" and own == NUMBERS):
        msg = (
            f"the processes exchange numbers on the CPU and tensors on {device.type!r}, which "
            f"{dist.get_backend()!r} cannot; call torch.distributed.init_process_group with "
            f"{needed!r}"
        )
        raise ConfigError(msg)


def name_of(device: torch.device) -> str:
    """Return a name that no other device of the run's machines has; "" if torch tells none."""
    api = api_of(device)
    if not hasattr(api, "get_device_properties"):
        return ""
    found = getattr(api.get_device_properties(device), "uuid", "")
    return f"{found} of {socket.gethostname()}" if found else ""


def require_apart(names: Sequence[str], kind: str) -> None:
    """Raise ConfigError if two processes have the same device.

    Args:
        names: the name of each process's device, "" if it is not known.
        kind: of those devices.
    """
    for rank, name in enumerate(names):
        if name and (first := names.index(name)) != rank:
            msg = (
                f"processes {first} and {rank} have the same {kind.upper()} device; start one "
                f"process for each device, {_WAY_OUT}"
            )
            raise ConfigError(msg)


def make_present(device: torch.device) -> None:
    """Let this thread use `device` where it names none; new threads begin with the first one."""
    torch.accelerator.set_device_index(device)
