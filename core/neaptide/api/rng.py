"""Saves and restores the random number generators of a run."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neaptide.devices import api_in_use

if TYPE_CHECKING:
    from collections.abc import Iterator


def seed_all(seed: int) -> None:
    """Seed torch on every device, Python's random, and numpy if numpy is imported."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def capture() -> dict[str, Any]:
    """Return the state of every generator as a tree of tensors, lists and numbers."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(numbers), gauss],
    }
    api = api_in_use()
    if api is not None:
        every = getattr(api, "get_rng_state_all", lambda: [api.get_rng_state()])
        state[_accelerator()] = every()
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, torch.from_numpy(keys.astype("int64")), position, has_gauss, cached]
    return state


def restore(state: dict[str, Any]) -> None:
    """Set every generator to `state`, a value that `capture` returned."""
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    for index, one in enumerate(state.get(_accelerator(), ())[: torch.accelerator.device_count()]):
        torch.get_device_module().set_rng_state(one, index)
    if "numpy" in state:
        import numpy as np  # noqa: PLC0415 - only where the saved run had it loaded

        name, keys, *rest = state["numpy"]
        np.random.set_state((name, keys.numpy().astype("uint32"), *rest))  # noqa: NPY002 - the global state


def rehearse(state: dict[str, Any]) -> None:
    """Raise the error that `restore` would raise for `state`. Changes no generator in use."""
    others = (one for kind in state.keys() - {"torch", "python", "numpy"} for one in state[kind])
    if any((one.ndim, one.dtype) != (1, torch.uint8) for one in (state["torch"], *others)):
        msg = "the state of a generator of torch must be uint8 of one dimension"
        raise ValueError(msg)
    torch.Generator().set_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.Random().setstate((version, tuple(numbers), gauss))  # noqa: S311 - draws nothing
    for index, one in enumerate(state.get(_accelerator(), ())[: torch.accelerator.device_count()]):
        if api_in_use() is not None:
            torch.Generator(f"{_accelerator()}:{index}").set_state(one)
    if "numpy" in state:
        import numpy as np  # noqa: PLC0415 - only where the saved run had it loaded

        name, keys, *rest = state["numpy"]
        if keys.dtype != torch.int64:
            msg = f"numpy's generator has keys of int64 (got {keys.dtype})"
            raise TypeError(msg)
        np.random.RandomState().set_state((name, keys.numpy().astype("uint32"), *rest))


def _accelerator() -> str:
    """Return the kind of accelerator that this torch was built for, or an empty text."""
    device = torch.accelerator.current_accelerator()
    return "" if device is None else device.type


@contextmanager
def preserved() -> Iterator[None]:
    """When the context ends, restore every generator to the state it had on entry."""
    state = capture()
    try:
        yield
    finally:
        restore(state)
