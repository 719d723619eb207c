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
_IMAGE, _IMAGES = 768 * 2**10, 640 * 2**10
"""The most bytes of images that a thread keeps: in a forward, and for the gradient of weights."""


def _forward(args: tuple[Any, ...], made: torch.Tensor) -> int:
    images, weight, groups = args[0], args[1], args[8]
    if not _by_onednn(images, weight, args[3], args[5], groups):
        return _columns(images, weight, made, args[3], args[4])
    if images.dtype in _HALF:
        inside = _scratch(images, weight, args[4], groups)
        packed = _weights(weight, groups, 32, 1)
        return max(inside + images.nbytes + packed, 2 * made.nbytes)
    blocked = _blocked(made, _BLOCK)
    reordered = _blocked(images, _BLOCK) if images.shape[1] >= _BLOCK or groups > 1 else 0
    padded = 0 if made.shape[1] % _BLOCK == 0 else 128 + 4 * _up(made.shape[1], _BLOCK)
    inside = reordered + _weights(weight, groups, _BLOCK, _BLOCK if reordered else 1) + padded
    return blocked + max(inside - made.nbytes, 0)


def _backward(args: tuple[Any, ...], made: Any) -> int:
    gradient, images, weight, groups = args[0], args[1], args[2], args[9]
    if not _by_onednn(images, weight, args[4], args[6], groups):
        return _columns(images, weight, gradient, args[4], args[5])
    results = sum(one.nbytes for one in made if one is not None)
    of_images = 0 if made[0] is None else images.nbytes
    half, strided = images.dtype in _HALF, any(step != 1 for step in args[4])
    if half:
        block, wide = 16, 32
        inside = _scratch(images, weight, args[5], groups)
        copied = gradient.nbytes + of_images
        both = _image(images, args[5]) + _image(gradient, args[5])
        kept = min(both * 13 // 10, _IMAGES)
        single = 2 * _weights(weight, groups, block, wide)
        for_weights = single + torch.get_num_threads() * (48 * 2**10 + kept)
        copied_again = gradient.nbytes + images.nbytes
    else:
        block, wide = _BLOCK, _BLOCK
        inside = 2**16 + gradient.nbytes // gradient.shape[0] * 9 // 8 if strided else 0
        copied = _blocked(gradient, _BLOCK) + (_blocked(images, _BLOCK) if of_images else 0)
        for_weights = 0
        copied_again = sum(_blocked(one, _least(one.shape[1])) for one in (gradient, images))
    packed = _weights(weight, groups, block, wide)
    first = copied + packed + inside if of_images else 0
    second = (3 if half or strided else 2) * of_images
    third = of_images + copied_again + packed + for_weights
    bias = made[2].nbytes if made[2] is not None else 0
    return max(first, second, third, results + packed + bias) - results


def _by_onednn(
    images: torch.Tensor, weight: torch.Tensor, stride: Any, dilation: Any, groups: int
) -> bool:
    """Return what `use_mkldnn` of `ATen/native/Convolution.cpp` does."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):  # type: ignore[attr-defined]
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
    return places * images.shape[1] * window * images.dtype.itemsize


def _weights(weight: torch.Tensor, groups: int, outer: int, inner: int) -> int:
    """Return the bytes of weights whose channels are padded."""
    if groups > 1:
        return weight.nbytes
    made, given, *window = weight.shape
    padded = _up(made, outer) * (_up(given, inner) if inner > 1 else given)
    return padded * math.prod(window) * weight.dtype.itemsize


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
    return int(images.shape[1]) * math.prod(padded) * images.dtype.itemsize


def _blocked(images: torch.Tensor, block: int) -> int:
    return images.nbytes // images.shape[1] * _up(images.shape[1], block)


def _least(channels: int) -> int:
    return _BLOCK // 2 if channels <= _BLOCK // 2 else _BLOCK


def _up(length: int, to: int) -> int:
    return -(-length // to) * to


TEMPORARY = {
    _ATEN.convolution.default: _forward,
    _ATEN.convolution_backward.default: _backward,
}
"""The bytes inside, by operation."""
