"""Ways to save weights and optimizer state to a folder, and to load them from it."""

from __future__ import annotations

import hashlib
import mmap
import os
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from neaptide import HybridTrainer
from neaptide.checkpoint.files import WAY
from neaptide_plugins.background_save.writing import BackgroundWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

_GIB = 2**30
_BLOCK = 16 << 20
_LAYERS = 16


class State(Protocol):
    """What is saved: a model and its optimizer."""

    model: nn.Module
    optimizer: torch.optim.Optimizer


def state_of(gib: float) -> HybridTrainer:
    """Return layers with AdamW's state that take `gib` together, in float32."""
    width = max(64, round((gib * _GIB / 12 / _LAYERS) ** 0.5 / 64) * 64)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(_LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    trainer = HybridTrainer(model, optimizer, loss_fn=lambda net, batch: net(batch).square().mean())
    trainer.step(torch.randn(4, width))
    optimizer.zero_grad(set_to_none=True)
    return trainer


def tree(held: State) -> dict[str, Any]:
    """Return the state as torch's own functions take it."""
    return {"model": held.model.state_dict(), "optimizer": held.optimizer.state_dict()}


def flat(held: State) -> dict[str, torch.Tensor]:
    """Return the tensors by name, as safetensors takes them."""
    state = held.optimizer.state_dict()["state"]
    moments = {f"{number}.{name}": one for number, of in state.items() for name, one in of.items()}
    return {**held.model.state_dict(), **moments}


def load_into(held: State, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
    """Load as a script by hand does."""
    held.model.load_state_dict(model)
    held.optimizer.load_state_dict(optimizer)


def by_torch(held: State, folder: Path) -> None:
    """torch.load, then both `load_state_dict`."""
    load_into(held, **torch.load(folder / "state.pt"))


def by_safetensors(held: State, folder: Path) -> None:
    """safetensors' load_file, then both `load_state_dict`."""
    tensors = load_file(folder / "state.safetensors")
    model = {name: tensors.pop(name) for name in held.model.state_dict()}
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, one in tensors.items():
        number, key = name.split(".")
        state.setdefault(int(number), {})[key] = one
    groups = held.optimizer.state_dict()["param_groups"]
    load_into(held, model, {"state": state, "param_groups": groups})


def by_dcp(held: State, folder: Path) -> None:
    """torch.distributed.checkpoint, which reads into the tensors that are there."""
    state = tree(held)
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    held.optimizer.load_state_dict(state["optimizer"])


def save_by_dcp(held: State, folder: Path) -> None:
    """torch.distributed.checkpoint; its writer calls fsync."""
    dcp.save(tree(held), checkpoint_id=folder, no_dist=True)


def block() -> torch.Tensor:
    """Return page-aligned bytes that no disk compresses."""
    memory = torch.frombuffer(mmap.mmap(-1, _BLOCK), dtype=torch.uint8)
    return memory.random_(0, 256)


def write_plainly(held: State, folder: Path) -> None:
    """Write as many bytes as the state has past the page cache."""
    data = memoryview(block().numpy())
    number = os.open(folder / "bytes", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    for _ in range(size_of(held) // _BLOCK):
        os.write(number, data)
    os.close(number)


def read_plainly(_: State, folder: Path) -> None:
    """Read them past the page cache."""
    data = memoryview(block().numpy())
    number = os.open(folder / "bytes", os.O_RDONLY | os.O_DIRECT)
    while os.readv(number, [data]):
        pass
    os.close(number)


def hash_plainly(held: State, _: Path) -> None:
    """Compute the sha256 of as many bytes."""
    data, digest = memoryview(block().numpy()), hashlib.sha256()
    for _number in range(size_of(held) // _BLOCK):
        digest.update(data)


def size_of(held: State) -> int:
    """Return the bytes of weights and state."""
    return sum(one.nbytes for one in flat(held).values())


@attrs.frozen
class Way:
    """One way to save to a folder and to load from it."""

    save: Callable[[Any, Path], object]
    load: Callable[[Any, Path], object]
    finish: Callable[[], object] | None = None
    """Ends a save that went on after `save` had returned."""


class AsyncDcp:
    """torch.distributed.checkpoint's own save in a thread. Its copies stay for the next save."""

    def __init__(self) -> None:
        options = StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=False,  # the last two need a GPU
        )
        self._stager = DefaultStager(options)
        self._upload: Future[Any] | None = None

    def save(self, held: State, folder: Path) -> None:
        """Copy the state; a thread writes the copies."""
        self._upload = dcp.async_save(  # type: ignore[assignment]  # without async staging
            tree(held), checkpoint_id=folder, async_stager=self._stager, no_dist=True
        )

    def finish(self) -> None:
        """Wait until it is written."""
        assert self._upload is not None
        self._upload.result()


WRITER = BackgroundWriter(8 * _GIB)
ASYNC_DCP = AsyncDcp()


def save_in_background(held: Any, folder: Path) -> None:
    """Save as the plugin does; return when training goes on."""
    token = WAY.set(lambda _, context, fill: WRITER.write(context, fill))
    try:
        held.save(folder / "saved")
    finally:
        WAY.reset(token)


def load_saved(held: Any, folder: Path) -> None:
    """Load what `trainer.save` wrote."""
    held.load(folder / "saved")


WAYS = {
    "disk": Way(write_plainly, read_plainly),
    "sha256": Way(hash_plainly, hash_plainly),
    "neaptide": Way(lambda held, path: held.save(path / "saved"), load_saved),
    "background-save": Way(save_in_background, load_saved, WRITER.finish),
    "torch.save": Way(lambda held, path: torch.save(tree(held), path / "state.pt"), by_torch),
    "safetensors": Way(
        lambda held, path: save_file(flat(held), path / "state.safetensors"), by_safetensors
    ),
    "torch.distributed.checkpoint": Way(save_by_dcp, by_dcp),
    "its async_save": Way(ASYNC_DCP.save, by_dcp, ASYNC_DCP.finish),
}
