"""Adds the samples of many weights to the rows of a window, small weights together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch._utils import _flatten_dense_tensors

from .held_tensors import GROUP, PIECE, HeldTensor, cut, draw, pieces, seed_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SMALL = 1 << 14
"""The most elements of a weight that is copied into one tensor together with others."""


class WeightSample(NamedTuple):
    """A weight, and what the window holds for it."""

    name: str
    weight: torch.Tensor
    rows: list[HeldTensor]
    reference: HeldTensor | None


def all_finite(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether all weights, of one dtype and device, are finite: 0-dim, on their device."""
    # aminmax returns NaN if one element is NaN; nothing is copied to the host here.
    small = [weight for weight in weights if weight.numel() <= SMALL]
    parts = [weight for weight in weights if weight.numel() > SMALL]
    parts += [_flatten_dense_tensors(small)] if len(small) > 1 else small  # type: ignore[no-untyped-call]
    extremes = [extreme for part in parts for extreme in torch.aminmax(part)]
    return torch.stack(extremes).isfinite().all()


def add_samples(
    weights: Mapping[str, torch.Tensor],
    rows: Mapping[str, list[HeldTensor]],
    references: Mapping[str, HeldTensor],
    shares: Sequence[float],
    began: int,
    index: int,
) -> None:
    """Add `shares[j] * (weight - reference)` of sample `index` to row j of each weight.

    The weights have one dtype and device. Sample 0 becomes the reference first, if there is one.
    The bits do not depend on which weights are given together. `began + index` seeds the rounding.
    """
    name, weight = next(iter(weights.items()))
    held = rows[name][0].values
    fits = weight.dtype == torch.float32 and weight.device == held.device
    if fits and held.dtype == torch.float32:  # no temporary memory, of large weights neither
        for row, share in enumerate(shares):
            if share:
                sums = [rows[name][row].values for name in weights]
                torch._foreach_add_(sums, list(weights.values()), alpha=share)
        return
    taken = [WeightSample(n, w, rows[n], references.get(n)) for n, w in weights.items()]
    together = fits and held.dtype == torch.bfloat16
    small = [each for each in taken if together and each.weight.numel() <= SMALL]
    for each in taken:
        if len(small) <= 1 or each.weight.numel() > SMALL:
            _add_alone(each, shares, began, index)
    for batch in _batches(small) if len(small) > 1 else ():
        _add_together(batch, shares, began, index)


def _add_alone(sampled: WeightSample, shares: Sequence[float], began: int, index: int) -> None:
    name, weight, rows, reference = sampled
    flat, work = weight.reshape(-1), rows[0].storage.works_on(weight)
    for start, stop in pieces(len(flat)):
        sample = flat[start:stop].to(work, torch.float32)
        if reference is not None:
            if index == 0:
                reference.write(start, sample, None)
            sample = sample - reference.read(start, stop, work)
        for row, (held, share) in enumerate(zip(rows, shares, strict=True)):
            if share:
                held.add(start, sample, share, seed_of(began + index, name, row, start))


def _batches(small: Sequence[WeightSample]) -> Iterator[list[WeightSample]]:
    """Yield neighbours of at most `PIECE` elements, which limits the temporary memory."""
    batch: list[WeightSample] = []
    elements = 0
    for each in small:
        size = _padded(each.weight)
        if elements + size > PIECE:
            yield batch
            batch, elements = [], 0
        batch.append(each)
        elements += size
    yield batch


def _padded(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() // GROUP) * GROUP


def _add_together(
    batch: Sequence[WeightSample], shares: Sequence[float], began: int, index: int
) -> None:
    """Add samples as `_add_alone` does, to rows in bfloat16, in one tensor of whole groups."""
    ops, sizes = batch[0].rows[0].storage.ops, [_padded(each.weight) for each in batch]
    groups = [size // GROUP for size in sizes]
    sample = _joined([each.weight for each in batch], sizes)
    held = [each.reference.tensors() for each in batch if each.reference is not None]
    codes, scales = ([tensors[place] for tensors in held] for place in (0, 1))
    if index == 0:
        quantized, largest, _ = ops.quantize(sample, GROUP)
        _store(codes, quantized, sizes)
        _store(scales, largest, groups)
    joined = _joined(codes, sizes)
    sample -= ops.dequantize(joined, torch.cat(scales), None, GROUP, torch.float32)
    for row, share in enumerate(shares):
        if share:
            values = [each.rows[row].values for each in batch]
            total = _joined(values, sizes).float().add_(sample, alpha=share)
            noise = _noise(batch, sizes, total.device, (began + index, row))
            _store(values, cut(total, noise), sizes)


def _joined(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    """Return the elements of all tensors in one, each padded with zeros to its size."""
    zeros = tensors[0].new_zeros(GROUP)
    parts: list[torch.Tensor] = []
    for tensor, size in zip(tensors, sizes, strict=True):
        parts.append(tensor.reshape(-1))
        if missing := size - tensor.numel():
            parts.append(zeros[:missing])
    return torch.cat(parts)


def _store(tensors: Sequence[torch.Tensor], joined: torch.Tensor, sizes: Sequence[int]) -> None:
    """Write `joined`, less its padding, to contiguous tensors."""
    parts = zip(tensors, joined.split_with_sizes(list(sizes)), strict=True)
    flat = [tensor.view(-1) for tensor in tensors]
    torch._foreach_copy_(flat, [part[: tensor.numel()] for tensor, part in parts])


def _noise(
    batch: Sequence[WeightSample], sizes: Sequence[int], device: torch.device, of: tuple[int, int]
) -> torch.Tensor:
    """Return the noise that each weight has alone, int16 `[sum(sizes)]`."""
    when, row = of
    words = torch.zeros(sum(sizes) // 4, dtype=torch.int64, device=device)
    generator, base = torch.Generator(device), 0
    for each, size in zip(batch, sizes, strict=True):
        for start, stop in pieces(each.weight.numel()):
            first, count = (base + start) // 4, -(-(stop - start) // 4)
            draw(words[first : first + count], seed_of(when, each.name, row, start), generator)
        base += size
    return words.view(torch.int16)
