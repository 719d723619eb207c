"""A dry run of a GPU computes attention, dropout and autocast as PyTorch does on CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import dropout, scaled_dot_product_attention

from neaptide_toolkit.dry_run.as_cuda.attention import as_cuda_attends, backend
from neaptide_toolkit.dry_run.as_cuda.autocasting import as_cuda_casts
from neaptide_toolkit.dry_run.unknown import Unknown

HALF, SINGLE = torch.bfloat16, torch.float32


def query(heads: int = 4, width: int = 8, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    return torch.randn(2, heads, 64, width, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "options", "expected"),
    [
        (HALF, {}, "flash"),
        (HALF, {"causal": True}, "flash"),
        (HALF, {"mask": True}, "efficient"),
        (HALF, {"width": 4}, "efficient"),
        (HALF, {"heads": 2}, "flash"),
        (HALF, {"heads": 2, "mask": True}, "math"),
        (SINGLE, {}, "efficient"),
        (SINGLE, {"mask": True}, "efficient"),
        (SINGLE, {"mask": True, "causal": True}, "math"),
        (SINGLE, {"heads": 2}, "math"),
        (torch.float64, {}, "math"),
    ],
)
def test_the_backend_is_cudas(dtype: torch.dtype, options: dict[str, Any], expected: str) -> None:
    heads = options.get("heads", 4)
    mask = torch.zeros(64, 64) if options.get("mask") else None
    key, value = query(heads, dtype=dtype), query(heads, options.get("width", 8), dtype)
    causal = options.get("causal", False)
    found = backend(query(dtype=dtype), key, value, mask, causal=causal, grouped=True)
    assert found == expected


def made_by(run: Any) -> tuple[list[int], list[str]]:
    """Return the bytes of all storages that `run` makes without values, and what it notes."""
    sizes: list[int] = []
    notes: list[str] = []
    mode = Unknown(lambda storage, *_: sizes.append(storage.nbytes()))
    with mode, as_cuda_attends(mode.is_unknown, notes.append):
        given = [query().requires_grad_() for _ in range(3)]
        mode.forget(given)
        sizes.clear()
        run(*given).sum().backward()
    return sizes, notes


def test_attention_with_dropout_makes_no_scores() -> None:
    sizes, notes = made_by(lambda *given: scaled_dot_product_attention(*given, dropout_p=0.1))
    assert max(sizes) == 2 * 4 * 64 * 8 * 4  # a query
    assert notes == ["attention of float32 takes the efficient backend"]


@pytest.mark.parametrize("by_token", [True, False], ids=str)
def test_flash_attention_has_the_layout_of_its_query(by_token: bool) -> None:  # noqa: FBT001
    whole = query(dtype=HALF)
    if by_token:
        whole = whole.transpose(1, 2).contiguous().transpose(1, 2)
    mode = Unknown(lambda *_: None)
    with mode, as_cuda_attends(mode.is_unknown, lambda _: None):
        given = [whole.detach().requires_grad_() for _ in range(3)]
        mode.forget(given)
        found = scaled_dot_product_attention(*given)
    on_meta = whole.to("meta")
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    assert found.stride() == flash(on_meta, on_meta, on_meta)[0].stride()
    assert found.stride() == whole.stride()


def test_attention_that_no_kernel_fuses_makes_scores() -> None:
    def grouped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(query, key[:, :2], value[:, :2], enable_gqa=True)

    sizes, notes = made_by(grouped)
    assert max(sizes) >= 2 * 4 * 64 * 64 * 4
    assert notes == ["attention of float32 takes the math backend"]


def test_dropout_keeps_a_byte_an_element() -> None:
    sizes, _ = made_by(lambda values, *_: dropout(values, 0.5))
    assert values_and_mask(sizes) == (1, 1)


def values_and_mask(sizes: list[int]) -> tuple[int, int]:
    whole = 2 * 4 * 64 * 8
    return sizes[:2].count(4 * whole), sizes[:2].count(whole)


def test_what_has_values_is_computed_as_ever() -> None:
    given = [query() for _ in range(3)]
    torch.manual_seed(0)
    expected = scaled_dot_product_attention(*given), dropout(given[0], 0.0)
    with as_cuda_attends(lambda _: False, print):
        torch.manual_seed(0)
        found = scaled_dot_product_attention(*given), dropout(given[0], 0.0)
    assert all(map(torch.equal, expected, found))


def test_all_ends_with_the_context() -> None:
    half = torch.ones(4, dtype=HALF)
    torch.manual_seed(0)
    before = dropout(torch.ones(8), 0.5)
    with as_cuda_attends(lambda _: False, print), as_cuda_casts():
        pass
    torch.manual_seed(0)
    assert torch.equal(before, dropout(torch.ones(8), 0.5))
    with torch.autocast("cpu", HALF):
        assert half.pow(2).dtype is HALF


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda one: one.pow(2), SINGLE),
        (lambda one: one.exp(), SINGLE),
        (lambda one: one.softmax(-1), SINGLE),
        (lambda one: one.softmax(-1, dtype=HALF), HALF),
        (lambda one: torch.softmax(one, -1, HALF), HALF),
        (lambda one: one.sum(), SINGLE),
        (lambda one: one.sum(-1), SINGLE),
        (lambda one: torch.layer_norm(one, (4,)), SINGLE),
        (lambda one: one @ one, HALF),
        (lambda one: one.float() @ one.float(), HALF),
        (lambda one: one.float().mv(one[0]), HALF),
        (lambda one: one + 1, HALF),
        (lambda one: one.double().exp(), torch.float64),
    ],
)
def test_autocast_has_the_rules_of_cuda(run: Any, expected: torch.dtype) -> None:
    with as_cuda_casts(), torch.autocast("cpu", HALF):
        assert run(torch.ones(4, 4, dtype=HALF)).dtype is expected


def test_without_autocast_nothing_is_cast() -> None:
    with as_cuda_casts():
        assert torch.ones(4, dtype=HALF).exp().dtype is HALF
