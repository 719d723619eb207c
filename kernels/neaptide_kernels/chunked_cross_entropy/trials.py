"""Makes sample weights and labels for `chunked_cross_entropy`, and compares results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_kernels.registry import Sample, relative_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest permitted relative error of a result, by the dtype of the logits."""


def agree(
    expected: Sequence[tuple[str, torch.Tensor]], got: Sequence[tuple[str, torch.Tensor]]
) -> Iterator[str]:
    """Yield a message for each result whose relative error (of norms) is too large."""
    # The gradient of `hidden` has the dtype of the logits, even if this gradient is empty.
    allowed = ALLOWED[got[1][1].dtype]
    for (name, right), (_, result) in zip(expected, got, strict=True):
        error = relative_error(right, result)
        if error > allowed:
            yield f"{name}: relative error {error:.2g} is more than {allowed:.2g}"


def arguments(
    tokens: int,
    width: int,
    vocabulary: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden, weight, bias and labels; a quarter of the labels are ignored."""
    generator = torch.Generator().manual_seed(tokens * vocabulary + width)
    hidden, weight, bias = (
        torch.randn(size, generator=generator, device="cpu").to(dtype=dtype, device=device)
        for size in ((tokens, width), (vocabulary, width), (vocabulary,))
    )
    labels = torch.randint(vocabulary, (tokens,), generator=generator, device="cpu")
    labels[torch.rand(tokens, generator=generator, device="cpu") < 0.25] = -100  # noqa: PLR2004 - a quarter
    return hidden, weight, bias, labels.to(device)


def samples(device: torch.device) -> Iterator[Sample]:
    """Yield samples with odd sizes, strides, labels and values in every dtype."""
    all_three = (True, True, True)
    for tokens, width, vocabulary, chunk in (
        (1, 1, 1, 1),
        (17, 16, 63, 5),
        (9, 8, 65, 64),
        (3, 4, 4100, 2),
        (0, 4, 5, 3),
    ):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for softcap in (None, 3.0):
                hidden, weight, bias, labels = arguments(tokens, width, vocabulary, device, dtype)
                name = f"{tokens} x {width} x {vocabulary} {dtype}, softcap {softcap}"
                given = (hidden, weight, bias, labels, chunk, -100, softcap, None, *all_three)
                yield Sample(name=name, arguments=given)
    hidden, weight, bias, labels = arguments(17, 16, 63, device)
    for wanted in ((False, False, False), (True, False, False), (False, True, False)):
        some = (hidden, weight, None, labels, 7, -100, None, None, *wanted)
        yield Sample(name=f"gradients {wanted}, no bias", arguments=some)
    plain = (7, -100, None, None, *all_three)
    strided = (hidden.T.contiguous().T, weight.T.contiguous().T, bias, labels.repeat(2)[::2])
    yield Sample(name="strided", arguments=(*strided, *plain))
    wrong = labels.clone()
    wrong[3], wrong[9] = 63, -1
    yield Sample(name="labels out of range", arguments=(hidden, weight, bias, wrong, *plain))
    tokens_only = labels.clamp(min=0)
    cast = (7, 5, None, torch.bfloat16, *all_three)
    name = "a token is the ignored label, cast to bfloat16"
    yield Sample(name=name, arguments=(hidden, weight, bias, tokens_only, *cast))
    for number in (torch.inf, -torch.inf, torch.nan):
        broken = bias.clone()
        broken[7] = number
        safe = labels.clamp(min=8)
        yield Sample(name=f"a logit of {number}", arguments=(hidden, weight, broken, safe, *plain))


def large(device: torch.device) -> Iterator[Sample]:
    """Yield arguments of the size of a language model's head; on a CPU the heads are smaller."""
    gpu = device.type != "cpu"  # a CPU would take minutes for large heads
    of_cpu = ((64, 64, 256), (256, 64, 1000), (512, 256, 32_000))
    sizes = ((4096, 2048, 32_000), (2048, 4096, 128_256)) if gpu else of_cpu
    dtype, chunk = (torch.bfloat16, 1024) if gpu else (torch.float32, 128)
    for tokens, width, vocabulary in sizes:
        hidden, weight, _, labels = arguments(tokens, width, vocabulary, device, dtype)
        given = (hidden, weight, None, labels, chunk, -100, None, None, True, True, False)
        yield Sample(name=f"{tokens} tokens x {width}, {vocabulary} words", arguments=given)
