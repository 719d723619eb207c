"""Tests whether a block returns the same values for a batch and for the batch's micro-batches."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from neaptide.errors import ModelError
from neaptide_toolkit.recompute import CallContext
from neaptide_toolkit.recompute.untracked_state import UntrackedState

from .call import tried
from .micro_batches import Batch, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .call import Call

_SAMPLE = 4096
"""Number of elements that are compared to detect a changed tensor."""


def probe(call: Call) -> None:
    """Once per block, compare its result for the pieces with its result for the whole batch.

    Raises ModelError if they differ.
    """
    unit, batch = call.unit, call.batch
    if unit.probed or batch is None or batch.count == 1:
        return
    unit.probed = True
    with _evaluated(call):
        whole: list[list[torch.Tensor]] = []
        if tried(lambda: whole.append(_outputs(call, [call.inputs]))) is not None:
            return  # the whole batch does not fit in memory
        pieces = [batch.piece(call.inputs, piece) for piece in range(batch.count)]
        try:
            parts = _outputs(call, pieces, batch)
            close = all(map(is_close, whole[0], parts))
        except RuntimeError as error:
            msg = f"{error}; {ways_out(unit.block.name)}"
            raise ModelError(msg) from error
    if not close:
        msg = (
            f"block {unit.block.name!r} returns something else for {batch.count} micro-batches "
            f"than for the whole batch; {ways_out(unit.block.name)}"
        )
        raise ModelError(msg)


def _outputs(
    call: Call, given: Sequence[Sequence[torch.Tensor]], batch: Batch | None = None
) -> list[torch.Tensor]:
    results = []
    for inputs in given:
        copies = [tensor.clone() for tensor in inputs]
        memo = {id(kept): copy for kept, copy in zip(call.kept, copies, strict=True)}
        args, kwargs = call.arguments.again([], memo)
        results.append(call.run(args, kwargs, copies))
    if batch is None:
        return results[0][1]
    return joined(call.unit.block.name, None, [came for _, came in results], batch)[1]


@contextmanager
def _evaluated(call: Call) -> Iterator[None]:
    """Run the block in eval mode, and restore random state and buffers afterwards."""
    modules = [(module, module.training) for module in call.unit.block.module.modules()]
    unit = call.unit
    context = CallContext.now(unit.buffers.before())
    with context.restored(), UntrackedState.now(unit.buffers.parts.now()).restored():
        try:
            for module, _ in modules:
                module.training = False
            yield
        finally:
            for module, training in modules:
                module.training = training


def ways_out(block: str) -> str:
    """Return the end of an error text: what to do if the batch cannot be split."""
    return f"set micro_batches = 1, or exclude {block!r} from layer streaming"


def sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Return copies of some elements, so that the tensor's memory can be freed."""
    bare = tensor.detach()
    if bare.layout != torch.strided or bare.numel() <= _SAMPLE:
        return bare.clone()
    return bare.reshape(-1)[:: -(-bare.numel() // _SAMPLE)].clone()


def is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal up to rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    # Kernels sum in an order that depends on the shapes. So the results for pieces may differ by up
    # to a few hundred units in the last place.
    tolerance = 512 * torch.finfo(one.dtype).eps
    scale = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
