"""Work on equal parts: two parts run, and the second stands for the rest.

A second part finds the temporary tensors of the part before it, as all later ones do.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from neaptide.hooks.manager import HookManager
from neaptide_kernels.parts import slices
from neaptide_toolkit.dry_run.shapes import Shape
from neaptide_toolkit.tensors import nested_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from neaptide_kernels.parts import Parts, Rows
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


def two_rows(
    is_on_host: Callable[[torch.Tensor], bool],
    forget: Callable[[Iterable[torch.Tensor]], None],
    times: Callable[[int], AbstractContextManager[None]],
) -> Rows:
    """Return what takes the place of `neaptide_kernels.parts.rows_of` in a dry run.

    Args:
        is_on_host: as in `two_parts`.
        forget: from then on, the values of the given tensors are unknown.
        times: as in `two_parts`.
    """

    def rows(
        lists: Sequence[Sequence[torch.Tensor]],
    ) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
        kinds = defaultdict(list)
        for place, row in enumerate(zip(*lists, strict=True)):
            kinds[tuple((Shape.of(one), is_on_host(one)) for one in row)].append((place, row))
        for first, *others in kinds.values():
            yield first
            if others:
                with times(len(others)):
                    yield others[0]
            for _, row in others[1:]:
                forget(one for one in row if one.ndim)

    return rows


class _Two(list[Any]):
    """Equal micro-batches. Iterating yields two of them."""

    def __init__(
        self,
        planned: Sequence[Any],
        log: AllocationLog,
        times: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        super().__init__(planned)
        self._log, self._times = log, times

    def __iter__(self) -> Iterator[Any]:
        yield self[0]
        since = len(self._log.changes)
        with self._times(len(self) - 1):
            yield self[1]
        until = len(self._log.changes)
        for _ in range(len(self) - 2):
            self._log.repeat(since, until, ())


@contextmanager
def two_micro_batches(
    log: AllocationLog, times: Callable[[int], AbstractContextManager[None]]
) -> Iterator[None]:
    """Within this context, a step runs two of its micro-batches if all have equal shapes.

    Args:
        log: repeats what the second has allocated and freed.
        times: as in `two_parts`.
    """
    asked = HookManager.first

    def first(hooks: HookManager, hook: str, expected: Any, **given: Any) -> Any:
        found = asked(hooks, hook, expected, **given)
        if hook != "plan_micro_batches" or found is None or len(found) <= 2:  # noqa: PLR2004 - the two
            return found
        shapes = [[Shape.of(tensor) for tensor in nested_tensors(one)] for one in found]
        return _Two(found, log, times) if shapes.count(shapes[0]) == len(shapes) else found

    HookManager.first = first  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        HookManager.first = asked  # type: ignore[method-assign]


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
