"""Adds up the gradients of all processes, and compares their weights."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neaptide.errors import ModelError
from neaptide.tensors import batch_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from neaptide.api.parameters import ParameterStore
    from neaptide.api.spans import Span
    from neaptide_toolkit.ranks.group import Ranks

BUCKET = 25 << 20
"""Bytes of gradients that are added up at once; torch's DDP uses as many."""
_WINDOW = 1 << 18
"""Values of a weight, or of a tensor of a batch, that are compared in one step."""
_HALVES = (torch.float16, torch.bfloat16)
WHOLE = (1 << 52) - 1
"""The largest checksum; float64 keeps such numbers."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def add_up(store: ParameterStore, ranks: Ranks, present: torch.Tensor) -> None:
    """Replace each gradient by its sum over all processes, in an order that never changes.

    A weight that has no gradient in any process keeps none. Where only other processes have one, it
    counts as zero here. Half-precision gradients are added up in float32 and rounded once.

    Args:
        store: its gradients are tensors of dtypes of any kind, in place.
        ranks: the processes.
        present: uint8, one for each trainable span: whether this process has a gradient. Gets the
            ones of all processes.
    """
    ranks.largest(present)
    trained = [span for span in store.spans() if span.trainable]
    wanted = [span for span, there in zip(trained, present.tolist(), strict=True) if there]
    for bucket in buckets(wanted):
        with ExitStack() as loans, torch.no_grad():
            gradients = [
                _dense(loans.enter_context(store.loan(span, "write", of="gradient")), span)
                for span in bucket
            ]
            dtype = torch.float32 if gradients[0].dtype in _HALVES else gradients[0].dtype
            flat = torch.cat([gradient.reshape(-1).to(dtype) for gradient in gradients])
            ranks.add(flat)
            sums = flat.split_with_sizes([gradient.numel() for gradient in gradients])
            for gradient, total in zip(gradients, sums, strict=True):
                gradient.copy_(total.view(gradient.shape))


def checksum_of_present(store: ParameterStore) -> int:
    """Return a checksum of which trainable spans have a gradient; the order counts."""
    total = 1
    for there in present(store).tolist():
        total = (total * 31 + there + 1) & WHOLE
    return total


def present(store: ParameterStore) -> torch.Tensor:
    """Return which trainable spans have a gradient, as uint8."""
    found = [store.has_gradient(span) for span in store.spans() if span.trainable]
    return torch.tensor(found, dtype=torch.uint8, device="cpu")


def _dense(gradient: torch.Tensor, span: Span) -> torch.Tensor:
    if gradient.layout is not torch.strided:
        msg = (
            f"the gradient of {span.name!r} is {gradient.layout}, which several processes cannot "
            f"add up; build the layer with sparse=False @ plugins.sharding"
        )
        raise ModelError(msg)
    return gradient


def buckets(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Yield consecutive spans of one dtype, of at most `BUCKET` bytes together or one alone."""
    bucket: list[Span] = []
    held = 0
    for span in spans:
        if bucket and (held + span.bytes > BUCKET or span.dtype != bucket[0].dtype):
            yield bucket
            bucket, held = [], 0
        bucket.append(span)
        held += span.bytes
    if bucket:
        yield bucket


def checksum(tensor: torch.Tensor) -> int:
    """Return a sum over the bits of `tensor`, below 2**52."""
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    bits = flat.view(_BITS[flat.element_size()])
    return int(bits.sum(dtype=torch.int64)) & WHOLE


def checksum_of_batch(batch: Any) -> int:
    """Return a checksum of the first values of each tensor of a batch; the order counts."""
    total = 0
    for tensor in batch_tensors(batch):
        if tensor.layout is torch.strided and not tensor.is_quantized:
            total = (total * 31 + checksum(tensor.reshape(-1)[:_WINDOW])) & WHOLE
    return total


def _lent(weight: torch.Tensor) -> AbstractContextManager[torch.Tensor]:
    return nullcontext(weight)


class Windows:
    """Parts of the weights, one after the other, for a comparison at each step."""

    def __init__(
        self,
        weights: Iterable[tuple[int, Callable[[], AbstractContextManager[torch.Tensor]]]],
    ) -> None:
        """Take of each weight how many values it has, and how to read it."""
        self._places = [
            (read, start) for size, read in weights for start in range(0, max(1, size), _WINDOW)
        ]
        self._next = 0

    @classmethod
    def of(cls, store: ParameterStore) -> Windows:
        """Return those of the whole weights of a store."""
        return cls(
            (torch.Size(span.shape).numel(), partial(store.loan, span, "read"))
            for span in store.spans()
        )

    @classmethod
    def of_rows(cls, parameters: Iterable[torch.Tensor]) -> Windows:
        """Return those of the rows that this process has of each weight."""
        return cls((one.numel(), partial(_lent, one)) for one in parameters)

    def checksum(self) -> int:
        """Return the checksum of the next part; all processes ask equally often."""
        read, start = self._places[self._next % len(self._places)]
        self._next += 1
        with read() as weight:
            return checksum(weight.detach().reshape(-1)[start : start + _WINDOW])


class ChangedBuffers:
    """Notices which buffers a forward has changed: PyTorch counts the changes in place."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: dict[str, tuple[int, int]] = {}

    def checksum(self) -> int:
        """Return a checksum of the buffers that have changed since the last call; 0 for none."""
        total = 0
        for name, buffer in self._model.named_buffers():
            # A tensor of inference mode has no count, and nobody can change it in place.
            changes = 0 if buffer.is_inference() else buffer._version  # noqa: SLF001 - the count
            now = id(buffer), changes
            if self._known.get(name) != now:
                self._known[name] = now
                total = (total * 31 + checksum(buffer) + 1) & WHOLE
        return total


def checksum_of_all(store: ParameterStore) -> int:
    """Return a checksum of all weights; the order counts."""
    total = 0
    for span in store.spans():
        with store.loan(span, "read") as weight:
            total = (total * 31 + checksum(weight)) & WHOLE
    return total


def checksum_of_tensors(tensors: Iterable[torch.Tensor]) -> int:
    """Return a checksum of weights or buffers; the order counts."""
    total = 0
    for tensor in tensors:
        total = (total * 31 + checksum(tensor)) & WHOLE
    return total
