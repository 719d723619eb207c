"""A table on the device. It gives one kernel launch the addresses of many tensors.

The arguments are lists of equal length, such as weights and gradients. A chunk is the set of
elements that one Triton program processes. The table has one int64 row for each position in the
lists. The row contains the number of elements, the index of the first chunk, and for each list the
address of its tensor at this position. A second table contains the index of the row for each chunk.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.devices import api_of, has_streams

from .accelerator import is_capturing, sent

if TYPE_CHECKING:
    from collections.abc import Sequence

_REMEMBERED = 256
_REMEMBERED_CHUNKS = 1 << 22


@attrs.frozen(eq=False)
class TensorTable:
    """The tables in which a kernel finds its tensors."""

    rows: torch.Tensor
    """int64 `[tensors, 2 + lists]`: number of elements, first chunk, one address per list."""
    owners: torch.Tensor
    """int32 `[chunks]`: the index of the row for each chunk."""
    chunks: int
    stream: int
    """Identifies the stream that copied the table to the device; 0 on a CPU."""


_lock = Lock()  # guards the variables below: several threads may run optimizers at a time
_tables: OrderedDict[tuple[object, ...], TensorTable] = OrderedDict()
_captured: list[TensorTable] = []  # a CUDA graph reads these tables at every replay


def table_of(lists: Sequence[Sequence[torch.Tensor]], chunk: int) -> TensorTable:
    """Return the table of some lists of contiguous tensors.

    Tensors at equal positions of the lists have equal numbers of elements. The host does not wait
    while a new table is copied to the device. The table is cached by addresses and stream, so a
    later call with the same tensors copies nothing. Empty tensors have no chunk.

    Raises:
        RuntimeError: a CUDA graph is being captured, and the tensors have no cached table.
    """
    device = lists[0][0].device
    stream, capturing = 0, False
    if has_streams(device):
        stream = api_of(device).current_stream(device).stream_id
        capturing = is_capturing(device.type)
    sizes = tuple(tensor.numel() for tensor in lists[0])
    addresses = tuple(tuple(tensor.data_ptr() for tensor in each) for each in lists)
    key = (device, chunk, sizes, addresses)
    with _lock:
        table = _tables.get(key)
        if capturing:
            if table is None:
                msg = (
                    "a CUDA graph is captured over tensors that were never stepped: step them once"
                )
                raise RuntimeError(msg)
            _captured.append(table)
        elif table is None or table.stream != stream:
            table = _tables[key] = _built(device, chunk, sizes, addresses, stream)
            _forget_oldest()
        _tables.move_to_end(key)
    return table


def _forget_oldest() -> None:
    chunks = sum(table.chunks for table in _tables.values())
    while len(_tables) > 1 and (len(_tables) > _REMEMBERED or chunks > _REMEMBERED_CHUNKS):
        chunks -= _tables.popitem(last=False)[1].chunks


def _built(
    device: torch.device,
    chunk: int,
    sizes: Sequence[int],
    addresses: Sequence[Sequence[int]],
    stream: int,
) -> TensorTable:
    counts = torch.tensor([-(-size // chunk) for size in sizes], dtype=torch.int64, device="cpu")
    ends = counts.cumsum(0)
    columns = (torch.tensor(each, dtype=torch.int64, device="cpu") for each in (sizes, *addresses))
    elements, *places = columns
    rows = torch.stack([elements, ends - counts, *places], dim=1)
    owners = torch.arange(len(sizes), dtype=torch.int32, device="cpu").repeat_interleave(counts)
    chunks = len(owners)
    return TensorTable(sent(rows, device), sent(owners, device), chunks, stream)
