"""Operations on equal parts of a large tensor: two parts run, and the second stands for the rest.

A second part finds the temporary tensors of the part before it, as all later ones do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide_kernels.parts import slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import torch

    from neaptide_kernels.parts import Parts


def two_parts(
    is_unknown: Callable[[torch.Tensor], bool],
    is_on_host: Callable[[torch.Tensor], bool],
    times: Callable[[int], AbstractContextManager[None]],
    *,
    accelerated: bool,
) -> Parts:
    """Return what takes the place of `neaptide_kernels.parts.parts_of` in a dry run.

    Args:
        is_unknown: returns whether the values of a tensor are unknown. Known ones are computed.
        is_on_host: returns whether a tensor is in the host's memory.
        times: within `times(count)`, each operation takes the time of `count`.
        accelerated: whether the device is not a CPU.
    """

    def parts(tensor: torch.Tensor, on_cpu: int, elsewhere: int) -> Iterator[slice]:
        size = elsewhere if accelerated and not is_on_host(tensor) else on_cpu
        elements = tensor.numel()
        whole, rest = divmod(elements, size)
        if whole <= 2 or not is_unknown(tensor):  # noqa: PLR2004 - the two that run
            yield from slices(elements, size)
            return
        yield slice(0, size)
        with times(whole - 1):
            yield slice(size, 2 * size)
        if rest:
            yield slice(elements - rest, elements)

    return parts
