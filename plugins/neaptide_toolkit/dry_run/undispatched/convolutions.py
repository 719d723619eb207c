"""Convolutions on a CPU, which oneDNN computes on copies with the channels in another order."""

from __future__ import annotations

import math
from typing import Any

import torch

_ATEN = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)
_BLOCK = 16
"""Channels that one vector register holds in single precision. Copies are padded to them."""
_SMALL_IMAGE = 20480
"""Elements up to which a batch of one is computed without oneDNN."""
_LEAST, _NARROW, _SUMMED = 8344, 3, 256
"""Bytes that kernels need whose channels lie next to each other; the widest window of the usual
kernels with one channel in a group; and copies of weights that others add up."""
_FEW, _LARGEST, _SUMS = 3, 14, 4
"""Channels of images that are read as they are; the largest window of the usual kernels; and copies
of the gradient of weights that each thread adds up where the window is larger."""
_BUFFERS, _LEAST_IN_HALF = 70, 74_120
"""In 16 bits, bytes for each element of a sample, and in any case, that these kernels need for the
gradient of weights."""
_IMAGE, _IMAGES = 768 * 2**10, 640 * 2**10
"""The most bytes of images that a thread keeps: in a forward, and for the gradient of weights."""


def _forward(args: tuple[Any, ...], made: torch.Tensor) -> int:
    images, weight, groups = args[0], args[1], args[8]
    if not _by_onednn(images, weight, args[3], args[5], groups):
        return _columns(images, weight, made, args[3], args[4])
    if images.dtype in _HALF:
        inside = _scratch(images, weight, args[4], groups)
        packed = _weights(weight, groups, 32, 1)
        return max(inside + int(images.nbytes) + packed, 2 * made.nbytes)
    if _is_last(images):
        return int(weight.nbytes) + _weights(weight, groups, _BLOCK, 1) + _LEAST
    blocked = _blocked(made, _BLOCK)
    reordered = _blocked(images, _BLOCK) if images.shape[1] >= _BLOCK or groups > 1 else 0
    padded = 0 if made.shape[1] % _BLOCK == 0 else 128 + 4 * _up(made.shape[1], _BLOCK)
    inside = reordered + _weights(weight, groups, _BLOCK, _BLOCK if reordered else 1) + padded
    return blocked + max(inside - made.nbytes, 0)


def _backward(args: tuple[Any, ...], made: Any) -> int:
    gradient, images, weight, groups = args[0], args[1], args[2], args[9]
    if not _by_onednn(images, weight, args[4], args[6], groups):
        return _columns(images, weight, gradient, args[4], args[5])
    if images.dtype in _HALF:
        held, packed = _held_in_half(args, made)
    else:
        held, packed = _held_in_single(args, made)
    results: int = sum(one.nbytes for one in made if one is not None)
    bias: int = made[2].nbytes if made[2] is not None else 0
    # PyTorch gives both to oneDNN in one order of the channels.
    copied: int = 0 if _is_last(gradient) == _is_last(images) else gradient.nbytes
    return max(held, results + packed + bias) - results + copied


def _held_in_half(args: tuple[Any, ...], made: Any) -> tuple[int, int]:
    """Return the most bytes of copies and results, and those of the packed weights."""
    gradient, images, weight, padding, groups = *args[:3], args[5], args[9]
    packed = _weights(weight, groups, _BLOCK, 32)
    if _is_wide(images, weight, groups) and _is_last(images):
        copies = _SUMMED * (4 + weight.dtype.itemsize) * weight.numel()
        return copies + _BUFFERS * images[0].numel() + _LEAST_IN_HALF + images.nbytes, packed
    both = _image(images, padding) + _image(gradient, padding)
    threads = torch.get_num_threads() * (39 * 2**10 + min(both * 13 // 10, _IMAGES))
    for_weights = gradient.nbytes + images.nbytes + 3 * packed + threads
    if made[0] is None:
        return for_weights, packed
    size = images.nbytes
    for_images = gradient.nbytes + size + packed + _scratch(images, weight, padding, groups)
    return max(for_images, 3 * size, size + for_weights), packed


def _held_in_single(args: tuple[Any, ...], made: Any) -> tuple[int, int]:
    """Return the most bytes of copies and results, and those of the packed weights."""
    gradient, images, weight, groups = *args[:3], args[9]
    strided = any(step != 1 for step in args[4])
    inside = 2**16 + gradient.nbytes // gradient.shape[0] * 9 // 8 if strided else 0
    wide = _is_wide(images, weight, groups)
    size = 0 if made[0] is None else images.nbytes
    few = images.shape[1] <= _FEW and not size
    packed = _weights(weight, groups, _BLOCK, 1 if few else _BLOCK)
    if max(weight.shape[2:]) > _LARGEST and groups == 1:
        threads = min(torch.get_num_threads(), len(images))
        columns = _columns(images[:1], weight, gradient[:1], args[4], args[5])
        return size + weight.nbytes + threads * (_SUMS * weight.nbytes + columns), 0
    if _is_last(images):
        summed = _SUMMED * weight.nbytes if wide else weight.nbytes
        first = packed + inside if size else 0
        return size + weight.nbytes + max(first, 2 * packed + summed) + _LEAST, packed
    channels = images.shape[1]
    for_weights = packed
    if wide:
        for_weights += weight.nbytes * (8 + 12 * torch.get_num_threads())
    else:
        is_copied = channels >= _BLOCK or not (strided or few)
        for_weights += _blocked(gradient, _block_of(gradient.shape[1]))
        for_weights += _blocked(images, _block_of(channels)) if is_copied else 0
    if not size:
        return for_weights, packed
    reordered = size if strided else _blocked(images, _BLOCK)
    for_images = _blocked(gradient, _BLOCK) + reordered + packed + inside
    return max(for_images, (3 if strided else 2) * size, size + for_weights), packed


def _is_wide(images: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    """Return whether kernels of their own run, with one channel in a group and a large window."""
    return groups == images.shape[1] and max(weight.shape[2:]) > _NARROW


def _is_last(images: torch.Tensor) -> bool:
    """Return whether the channels lie next to each other, so that nothing is reordered."""
    last = torch.channels_last if images.ndim == 4 else torch.channels_last_3d  # noqa: PLR2004
    if images.ndim not in (4, 5) or images.is_contiguous():
        return False
    return images.is_contiguous(memory_format=last)


def _by_onednn(
    images: torch.Tensor, weight: torch.Tensor, stride: Any, dilation: Any, groups: int
) -> bool:
    """Return what `use_mkldnn` of `ATen/native/Convolution.cpp` does."""
    if not torch._C._has_mkldnn or not torch._C._get_mkldnn_enabled():  # noqa: SLF001 - untyped else
        return False
    if images.dtype in _HALF:
        return True
    last = weight.shape[-2:]
    worth = (
        any(step != 1 for step in (*stride, *dilation))
        or images.shape[0] >= 16  # noqa: PLR2004 - PyTorch's numbers, here and below
        or any(length != 1 for length in last)
        or torch.get_num_threads() > 1
    )
    large = images.shape[0] > 1 or images.numel() > _SMALL_IMAGE
    wide = all(length > 3 for length in last)  # noqa: PLR2004
    return images.dtype == torch.float32 and worth and (groups > 1 or wide or large)


def _columns(
    images: torch.Tensor, weight: torch.Tensor, made: torch.Tensor, stride: Any, padding: Any
) -> int:
    """Return the bytes of the columns that a convolution without oneDNN multiplies."""
    window = math.prod(weight.shape[2:])
    if window == 1 and not any(padding) and all(step == 1 for step in stride):
        return 0  # the images are the columns
    places = made.shape[0] * math.prod(made.shape[2:])
    return int(places * images.shape[1] * window * images.dtype.itemsize)


def _weights(weight: torch.Tensor, groups: int, outer: int, inner: int) -> int:
    """Return the bytes of weights whose channels are padded."""
    if groups > 1:
        return weight.nbytes
    made, given, *window = weight.shape
    padded = _up(made, outer) * (_up(given, inner) if inner > 1 else given)
    return padded * math.prod(window) * int(weight.dtype.itemsize)


def _scratch(images: torch.Tensor, weight: torch.Tensor, padding: Any, groups: int) -> int:
    """Return the bytes that all threads need in 16 bits."""
    if groups == weight.shape[0] > 1:
        return 0
    each = 54 * 2**10 + min(_image(images, padding) * 13 // 10, _IMAGE)
    return torch.get_num_threads() * each


def _image(images: torch.Tensor, padding: Any) -> int:
    size = images.shape[2:]
    around = padding if len(padding) == len(size) else [*padding] * len(size)
    padded = [length + 2 * beside for length, beside in zip(size, around, strict=True)]
    return int(images.shape[1] * math.prod(padded) * images.dtype.itemsize)


def _blocked(images: torch.Tensor, block: int) -> int:
    return images.nbytes // images.shape[1] * _up(images.shape[1], block)


def _block_of(channels: int) -> int:
    return _BLOCK // 2 if channels <= _BLOCK // 2 else _BLOCK


def _up(length: int, to: int) -> int:
    return -(-length // to) * to


TEMPORARY = {
    _ATEN.convolution.default: _forward,
    _ATEN.convolution_backward.default: _backward,
}
"""The bytes inside, by operation."""
