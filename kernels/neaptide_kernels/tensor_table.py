"""Many tensors in one launch: a table on the device of where they lie and which chunk is whose.

One row of int64 a tensor: its elements, its first chunk, and the addresses of its counterparts in
the lists. A chunk is what one program works on; another table tells the row of each.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_REMEMBERED = 64


@attrs.frozen(eq=False)
class TensorTable:
    """What a kernel reads to find its tensors."""

    rows: torch.Tensor
    """int64 `[tensors, 2 + lists]`: elements, first chunk, addresses."""
    owners: torch.Tensor
    """int32 `[chunks]`: the row of each chunk."""
    chunks: int


_tables: OrderedDict[tuple[object, ...], TensorTable] = OrderedDict()


def table_of(lists: Sequence[Sequence[torch.Tensor]], chunk: int) -> TensorTable:
    """Return the table of lists of contiguous tensors that have the same sizes, place by place.

    It is copied to the device when the tensors were not met at these addresses before; one that is
    remembered costs nothing. Empty tensors have no chunk.
    """
    first = lists[0]
    device = first[0].device
    sizes = tuple(tensor.numel() for tensor in first)
    addresses = tuple(tuple(tensor.data_ptr() for tensor in each) for each in lists)
    key = (device, chunk, sizes, addresses)
    table = _tables.get(key)
    if table is None:
        table = _tables[key] = _built(device, chunk, sizes, addresses)
        if len(_tables) > _REMEMBERED:
            _tables.popitem(last=False)
    else:
        _tables.move_to_end(key)
    return table


def _built(
    device: torch.device,
    chunk: int,
    sizes: Sequence[int],
    addresses: Sequence[Sequence[int]],
) -> TensorTable:
    counts = torch.tensor([-(-size // chunk) for size in sizes], dtype=torch.int64)
    ends = counts.cumsum(0)
    rows = torch.stack(
        [
            torch.tensor(sizes, dtype=torch.int64),
            ends - counts,
            *(torch.tensor(each, dtype=torch.int64) for each in addresses),
        ],
        dim=1,
    )
    owners = torch.arange(len(sizes), dtype=torch.int32).repeat_interleave(counts)
    chunks = len(owners)
    # Waited for: whoever remembers a table may use it on another stream.
    return TensorTable(rows.to(device), owners.to(device), chunks)
