"""Operations on equal parts: two parts run, and the second stands for the rest.

A second part finds the temporary tensors of the part before it, as all later ones do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from neaptide_kernels.parts import slices
from neaptide_toolkit.tensors import nested_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from neaptide_kernels.parts import Parts
    from neaptide_toolkit.dry_run.allocations import AllocationLog
    from neaptide_toolkit.recompute.repeated import Repeat


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


def two_calls(
    alike: Callable[[torch.Tensor], torch.Tensor],
    log: AllocationLog,
    times: Callable[[int], AbstractContextManager[None]],
) -> Repeat:
    """Return what takes the place of `neaptide_toolkit.recompute.repeated.repeated` in a dry run.

    What a call leaves beside its result, such as the state of a random generator, is left twice.

    Args:
        alike: returns a tensor of the shape of the given one, without values.
        log: repeats what the second call has allocated and freed.
        times: as in `two_parts`.
    """

    def repeat(run: Callable[[int], Any], count: int) -> list[Any]:
        if count <= 2:  # noqa: PLR2004 - the two that run
            return [run(part) for part in range(count)]
        results, since = [run(0)], len(log.changes)
        with times(count - 1):
            results.append(run(1))
        until = len(log.changes)
        for _ in range(count - 2):
            results.append(tree_map_only(torch.Tensor, alike, results[1]))
            log.repeat(since, until, _pairs(results[1], results[-1]).values())
        return results

    return repeat


def _pairs(made: Any, others: Any) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Return the tensors of two results, one pair for each storage."""
    both = zip(nested_tensors(made), nested_tensors(others), strict=True)
    return {old.untyped_storage()._cdata: (old, new) for old, new in both}  # noqa: SLF001 - the identity
