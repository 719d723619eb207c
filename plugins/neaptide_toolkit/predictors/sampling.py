"""Adds the samples of many weights to the rows of a window, small weights together."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple, cast

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
    parts = [weight for weight in weights if weight.numel() > SMALL]
    small = [weight for weight in weights if weight.numel() <= SMALL] if parts else list(weights)
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
    small: list[WeightSample] = []
    large: list[WeightSample] = []
    for each in taken:
        (small if together and each.weight.numel() <= SMALL else large).append(each)
    if len(small) == 1:
        small, large = [], taken
    for each in large:
        _add_alone(each, shares, began, index)
    for batch in _batches(small) if small else ():
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


class _WeightBatch(NamedTuple):
    """Small weights that are copied into one tensor, and their places in it."""

    samples: list[WeightSample]
    sizes: list[int]
    """Elements of each weight, padded to whole groups."""
    missing: list[int]
    """Elements of each padding."""


def _batches(small: Sequence[WeightSample]) -> Iterator[_WeightBatch]:
    """Yield neighbours of at most `PIECE` elements, which limits the temporary memory."""
    batch, elements = _WeightBatch([], [], []), 0
    for each in small:
        elements_of = each.weight.numel()
        missing = -elements_of % GROUP
        size = elements_of + missing
        if elements + size > PIECE:
            yield batch
            batch, elements = _WeightBatch([], [], []), 0
        batch.samples.append(each)
        batch.sizes.append(size)
        batch.missing.append(missing)
        elements += size
    yield batch


def _add_together(batch: _WeightBatch, shares: Sequence[float], began: int, index: int) -> None:
    """Add samples as `_add_alone` does, to rows in bfloat16, in one tensor of whole groups."""
    samples, sizes, _ = batch
    ops, groups = samples[0].rows[0].storage.ops, [size // GROUP for size in sizes]
    sample = _joined(batch, [each.weight for each in samples])
    held = [each.reference for each in samples if each.reference is not None]
    codes = [each.values for each in held]
    scales = [each.scales for each in held if each.scales is not None]
    if index == 0:
        quantized, largest, _ = ops.quantize(sample, GROUP)
        _store(batch, codes, quantized)
        torch._foreach_copy_(scales, largest.split_with_sizes(groups))
    sample -= ops.dequantize(_joined(batch, codes), torch.cat(scales), None, GROUP, torch.float32)
    for row, share in enumerate(shares):
        if share:
            values = [each.rows[row].values for each in samples]
            total = _joined(batch, values).float().add_(sample, alpha=share)
            noise = _noise(batch, total.device, began + index, row)
            _store(batch, values, cut(total, noise))


def _joined(batch: _WeightBatch, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all tensors in one, each padded with zeros to its size."""
    parts = list(tensors)
    if any(batch.missing):
        zeros = tensors[0].new_zeros(GROUP)
        padding = [zeros[:missing] for missing in batch.missing]
        parts = [part for pair in zip(tensors, padding, strict=True) for part in pair]
    return cast("torch.Tensor", _flatten_dense_tensors(parts))  # type: ignore[no-untyped-call]


def _store(batch: _WeightBatch, tensors: Sequence[torch.Tensor], joined: torch.Tensor) -> None:
    """Write `joined`, less its padding, to contiguous tensors."""
    parts = list(joined.split_with_sizes(batch.sizes))
    if any(batch.missing):
        parts = [part[: len(part) - less] for part, less in zip(parts, batch.missing, strict=True)]
    torch._foreach_copy_([tensor.view(-1) for tensor in tensors], parts)


def _noise(batch: _WeightBatch, device: torch.device, when: int, row: int) -> torch.Tensor:
    """Return the noise that each weight has alone, int16 `[sum(sizes)]`."""
    begun = seed_of(when, "")  # a seed is a checksum, which can be continued
    spans: list[int] = []
    seeds: list[int | None] = []
    for each, size, missing in zip(*batch, strict=True):
        name = zlib.crc32(f"{each.name}/{row}/".encode(), begun)
        whole = size if not missing else size - GROUP
        if whole:
            spans.append(whole // 4)
            seeds.append(zlib.crc32(b"0", name))
        if missing:
            drawn = -(-(GROUP - missing) // 4)
            spans += [drawn, GROUP // 4 - drawn]
            seeds += [zlib.crc32(str(whole).encode(), name), None]
    words = torch.zeros(sum(batch.sizes) // 4, dtype=torch.int64, device=device)
    generator = torch.Generator(device)
    for words_of, seed in zip(words.split_with_sizes(spans), seeds, strict=True):
        if seed is not None:
            draw(words_of, seed, generator)
    return words.view(torch.int16)
