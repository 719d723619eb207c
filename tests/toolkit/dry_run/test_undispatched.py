"""Memory that PyTorch takes below its dispatcher is in a dry run: kernels, and generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import conv1d, conv2d

from neaptide_toolkit.dry_run.allocations import AllocationLog
from neaptide_toolkit.dry_run.undispatched.generators import states_noted
from neaptide_toolkit.dry_run.undispatched.kernels import temporary_anywhere
from neaptide_toolkit.dry_run.unknown import Unknown
from neaptide_toolkit.testing.allocations import peak_of

if TYPE_CHECKING:
    from collections.abc import Callable

HALF = torch.bfloat16
pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="the numbers are those of kernels for AVX-512",
)
LSTM = torch.ops.aten.mkldnn_rnn_layer.default


def both(made: Callable[[], Callable[[], Any]], **options: Any) -> tuple[int, int]:
    """Return the most bytes of an action in a dry run and in truth. `made` returns the action."""
    action = made()
    action()  # kernels that are built once
    measured = peak_of(action)
    log = AllocationLog(accelerated=False)
    with states_noted(log.made), Unknown(log.made, **options):
        action()
    return log.peaks("device")["assembly"].bytes, measured


def convolved(
    size: tuple[int, ...],
    made: int,
    window: int = 3,
    dtype: torch.dtype = torch.float32,
    *,
    backward: bool = False,
    last: bool = False,
    **options: Any,
) -> Callable[[], Any]:
    """Return a convolution of images of this size to `made` channels, or its backward."""
    images = torch.randn(size, dtype=dtype)
    if last:
        images = images.to(memory_format=torch.channels_last)
    images.requires_grad_(backward)
    given = size[1] // options.get("groups", 1)
    weight = torch.randn(made, given, *[window] * (len(size) - 2), dtype=dtype)
    weight.requires_grad_(backward)
    function = conv1d if len(size) == 3 else conv2d
    if not backward:
        return lambda: function(images, weight, **options)
    result = function(images, weight, **options)
    gradient = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, (images, weight), gradient, retain_graph=True)


CONVOLUTIONS: dict[str, tuple[Any, ...]] = {
    "few channels": ((8, 8, 24, 24), 8),
    "a channel more": ((4, 17, 8, 8), 33),
    "many": ((2, 64, 32, 32), 64),
    "one pixel": ((2, 64, 32, 32), 128, 1),
    "of one sample": ((1, 4, 16, 16), 8),
    "in double precision": ((4, 8, 16, 16), 8, 3, torch.float64),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_takes_copies(name: str, *, backward: bool) -> None:
    planned, measured = both(lambda: convolved(*CONVOLUTIONS[name], padding=1, backward=backward))
    assert planned == pytest.approx(measured, rel=0.02)


OTHERS: tuple[dict[str, Any], ...] = (
    {"groups": 4},
    {"groups": 32},
    {"groups": 32, "window": 7, "padding": 3},
    {"stride": 2},
    {"last": True},
    {"last": True, "groups": 32, "window": 7, "padding": 3},
    {"last": True, "stride": 2},
)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_a_convolution_of_another_kind_takes_copies(
    options: dict[str, Any], *, backward: bool
) -> None:
    planned, measured = both(
        lambda: convolved((4, 32, 32, 32), 32, backward=backward, **{"padding": 1, **options})
    )
    assert 0.98 <= planned / measured <= 1.2


@pytest.mark.parametrize("window", [4, 7, 14, 15, 16])
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("stride", [1, 4])
def test_the_gradient_of_weights_of_images_takes_copies(
    window: int, rows: int, stride: int
) -> None:
    images = torch.randn(rows, 3, 48, 48)
    weight = torch.randn(64, 3, window, window, requires_grad=True)
    result = conv2d(images, weight, stride=stride)
    gradient = torch.randn_like(result)
    planned, measured = both(
        lambda: lambda: torch.autograd.grad(result, weight, gradient, retain_graph=True)
    )
    assert planned == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", ["few channels", "a channel more", "many"])
def test_a_convolution_in_16_bits_takes_copies(name: str, *, backward: bool) -> None:
    size, made = CONVOLUTIONS[name]
    planned, measured = both(lambda: convolved(size, made, 3, HALF, padding=1, backward=backward))
    # A processor that multiplies bfloat16 itself, but has no tiles (AMX), takes fewer copies.
    assert 0.98 <= planned / measured <= 1.6


@pytest.mark.parametrize("sizes", [(64, 48, 192), (16, 8, 32), (512, 128, 512), (4096, 256, 1024)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_in_16_bits_takes_packed_copies(
    sizes: tuple[int, int, int], *, transposed: bool
) -> None:
    rows, inner, columns = sizes

    def made() -> Callable[[], Any]:
        left = torch.randn((inner, rows) if transposed else (rows, inner), dtype=HALF)
        right = torch.randn(inner, columns, dtype=HALF)
        return lambda: (left.t() if transposed else left) @ right

    planned, measured = both(made)
    assert 0.98 <= planned / measured <= 1.5


@pytest.mark.parametrize("sizes", [(1, 8, 8, 8), (33, 8, 4, 4), (9, 3, 200, 10), (32, 16, 64, 512)])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_a_layer_of_an_lstm_takes_its_workspace(
    sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    length, rows, width, hidden = sizes

    def made() -> Callable[[], Any]:
        gates = [(4 * hidden, width), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
        every = [(length, rows, width), *gates, (rows, hidden), (rows, hidden)]
        given = [torch.zeros(size, dtype=dtype) for size in every]
        return lambda: LSTM(*given, False, [], 2, hidden, 1, True, False, False, True)

    planned, measured = both(made)
    assert 0.98 <= planned / measured <= (1.0001 if dtype == torch.float32 else 1.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, HALF])
def test_a_comparison_takes_differences_and_masks(dtype: torch.dtype) -> None:
    def made() -> Callable[[], Any]:
        one = torch.randn(5000, dtype=dtype)
        other = one.clone()
        return lambda: torch.allclose(one, other, equal_nan=True)

    for inside in ({}, {"inside": temporary_anywhere}):
        planned, measured = both(made, **inside)
        assert planned == pytest.approx(measured, rel=0.02)


def test_the_state_of_a_generator_counts() -> None:
    planned, measured = both(lambda: lambda: [torch.get_rng_state() for _ in range(3)])
    assert planned == measured == 3 * torch.get_rng_state().nbytes


def test_a_large_window_of_one_channel_in_16_bits_takes_many_copies_of_the_weight() -> None:
    for size, window in (((8, 32, 16, 16), 7), ((2, 64, 8, 8), 5), ((4, 96, 28, 28), 7)):
        planned, measured = both(
            lambda size=size, window=window: convolved(
                size,
                size[1],
                window,
                HALF,
                backward=True,
                last=True,
                groups=size[1],
                padding=window // 2,
            )
        )
        assert planned / measured >= 0.97


def test_a_gradient_in_another_order_of_channels_is_copied() -> None:
    def made() -> Callable[[], Any]:
        images = torch.randn(8, 32, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
        weight = torch.randn(64, 32, 2, 2, requires_grad=True)
        result = conv2d(images, weight, stride=2)
        gradient = torch.randn(result.shape)
        return lambda: torch.autograd.grad(result, (images, weight), gradient, retain_graph=True)

    planned, measured = both(made)
    assert 0.98 <= planned / measured <= 1.2


@pytest.mark.parametrize("backward", [False, True])
def test_what_is_normalized_is_copied_if_it_is_not_contiguous(*, backward: bool) -> None:
    def made() -> Callable[[], Any]:
        images = torch.randn(8, 32, 16, 16).permute(0, 2, 3, 1).requires_grad_()
        weight, bias = torch.ones(32, requires_grad=True), torch.zeros(32, requires_grad=True)

        def forward() -> torch.Tensor:
            return torch.nn.functional.layer_norm(images, (32,), weight, bias)

        result = forward()
        gradient = torch.randn_like(result)
        given = images, weight, bias
        return (
            (lambda: torch.autograd.grad(result, given, gradient, retain_graph=True))
            if backward
            else forward
        )

    planned, measured = both(made)
    assert planned == pytest.approx(measured, rel=0.02)
