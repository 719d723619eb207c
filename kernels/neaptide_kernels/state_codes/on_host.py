"""Run the ops with 8-bit state with the compiled steps of `host`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neaptide_kernels import host_threads
from neaptide_kernels.parts import parts_by, slices

from . import BLOCK, Stream, blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

_MASK = 0xFFFFFFFF


def step(by_pieces: Callable[..., None], name: str, *arguments: Any) -> None:
    """Run an op with the function `name` of `host`.

    Args:
        by_pieces: see `CodedOp.by_pieces`.
        name: the name of the op and of the function.
        arguments: those of the op.
    """
    calls: list[host_threads.HostCall] = []
    copied = not all(param.is_contiguous() for param in arguments[0])

    def update(*given: Any) -> tuple[torch.Tensor, ...]:
        place = next(at for at, one in enumerate(given) if isinstance(one, Stream))
        tensors, (stream, start, *factors) = given[:place], given[place:]
        keys = (np.uint32(int(one) & _MASK) for one in (stream.first, stream.second, stream.turned))
        numbers = (np.float32(float(one)) for one in factors)
        arrays = [host_threads.array(one) for one in tensors]
        calls.append(
            host_threads.HostCall(
                name, blocks_of(len(arrays[0])), (*arrays, *keys, int(start), *numbers)
            )
        )
        if copied:  # the copy of a weight is copied back at once
            run()
        return tensors[:-1]

    def run() -> None:
        host_threads.run(f"{__package__}.host", BLOCK, calls)
        calls.clear()

    with parts_by(_whole):
        by_pieces(*arguments, update=update)
    run()


def _whole(tensor: torch.Tensor, *_: int) -> Iterator[slice]:
    return slices(tensor.numel(), max(1, tensor.numel()))
