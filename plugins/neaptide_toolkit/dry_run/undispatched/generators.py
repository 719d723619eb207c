"""The states of random generators, which PyTorch makes outside of its dispatcher.

Whoever computes a forward again keeps one for each call: 5 KB, in RAM.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CPU = torch.device("cpu")


@contextmanager
def states_noted(
    made: Callable[[torch.UntypedStorage, list[torch.Tensor], torch.device | None], None],
) -> Iterator[None]:
    """Within this context, `made` is called with the memory of each state of the CPU's generator.

    `made` gets the storage, no tensors, and the CPU as its device.
    """
    original = torch.get_rng_state

    def get_rng_state() -> torch.Tensor:
        state = original()
        made(state.untyped_storage(), [], _CPU)
        return state

    torch.get_rng_state = torch.random.get_rng_state = get_rng_state
    try:
        yield
    finally:
        torch.get_rng_state = torch.random.get_rng_state = original
