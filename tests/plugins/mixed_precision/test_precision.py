"""Which dtype is chosen, and that its casts do not outlive the forward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neaptide_plugins.mixed_precision.precision import computing_in, resolve, widened

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((7, 0), torch.float16),
        ((7, 5), torch.float16),
        ((8, 0), torch.bfloat16),
        ((9, 0), torch.bfloat16),
    ],
)
def test_bf16_is_recommended_where_it_is_native(
    capability: tuple[int, int], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert expected is resolve("auto", torch.device("cuda"))


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("fp32", torch.float32),
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
        ("auto", torch.bfloat16),
    ],
)
def test_each_setting_has_its_dtype(precision: str, expected: torch.dtype) -> None:
    assert expected is resolve(precision, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_computed_in_the_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(2, 2)
    with computing_in(dtype, CPU):
        assert dtype is (x @ x).dtype
    assert torch.float32 is (x @ x).dtype


def test_float32_turns_an_autocast_around_it_off() -> None:
    x = torch.randn(2, 2)
    with torch.autocast("cpu", torch.bfloat16), computing_in(torch.float32, CPU):
        assert torch.float32 is (x @ x).dtype


def test_casts_of_weights_do_not_outlive_the_context() -> None:
    layer, x = nn.Linear(1, 1, bias=False), torch.ones(1, 1)
    seen = []
    with torch.autocast("cpu", torch.bfloat16):
        for value in (1.0, 2.0):
            nn.init.constant_(layer.weight, value)
            with computing_in(torch.bfloat16, CPU):
                seen.append(layer(x).item())
    assert [1.0, 2.0] == seen


def test_an_error_drops_the_casts_too() -> None:
    layer, x = nn.Linear(1, 1, bias=False), torch.ones(1, 1)
    nn.init.constant_(layer.weight, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError), computing_in(torch.bfloat16, CPU):
            layer(layer(x).expand(1, 2))  # of the wrong width
        nn.init.constant_(layer.weight, 2.0)
        assert 2.0 == layer(x).item()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_losses_are_widened_never_narrowed(dtype: torch.dtype, expected: torch.dtype) -> None:
    assert expected is widened(torch.zeros((), dtype=dtype)).dtype
