"""Shapes that depend on values: computed if these are known, else the largest, else refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide_toolkit.dry_run.assumptions import UnplannableError
from neaptide_toolkit.dry_run.undispatched.lstm import LAYER
from neaptide_toolkit.dry_run.unknown import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable


def ignored(*_: Any) -> None:
    """Take a storage."""


def shapes(value: Any) -> list[Any]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [(tuple(one.shape), one.dtype) for one in leaves if isinstance(one, torch.Tensor)]


BY_VALUE: dict[str, Callable[[torch.Tensor], Any]] = {
    "a mask": lambda x: x[x > 1],
    "a mask of rows": lambda x: x[x[:, 0] > 1],
    "a mask and places": lambda x: x[x[:, 0] > 1, 0],
    "masked_select": lambda x: x.masked_select(x > 1),
    "masked_select of rows": lambda x: x.masked_select(x[0] > 1),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 1),
    "argwhere": torch.argwhere,
    "unique": torch.unique,
    "unique with all": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "unique along a dimension": lambda x: torch.unique(x, dim=0, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x, return_counts=True),
    "unique_consecutive, rows": lambda x: torch.unique_consecutive(x, dim=1),
    "bincount": lambda x: torch.bincount(x.long().flatten(), minlength=9),
    "put by a mask": lambda x: torch.index_put(x, (x > 1,), torch.zeros(())),
}


@pytest.mark.parametrize("name", BY_VALUE)
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), seed=st.integers(0, 9))
def test_known_values_give_the_real_shape(name: str, rows: int, columns: int, seed: int) -> None:
    values = torch.randint(0, 4, (rows, columns), generator=torch.Generator().manual_seed(seed))
    with Unknown(ignored):
        made = BY_VALUE[name](values.float())
    assert shapes(made) == shapes(BY_VALUE[name](values.float()))


@pytest.mark.parametrize("name", BY_VALUE)
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), seed=st.integers(0, 9))
def test_unknown_values_give_the_largest_shape(
    name: str, rows: int, columns: int, seed: int
) -> None:
    values = torch.randint(0, 4, (rows, columns), generator=torch.Generator().manual_seed(seed))
    mode = Unknown(ignored)
    given_ = values.float()
    with mode:
        mode.forget([given_])
        made = BY_VALUE[name](given_)
    for (size, dtype), (real, kind) in zip(
        shapes(made), shapes(BY_VALUE[name](values.float())), strict=True
    ):
        assert dtype is kind
        assert len(size) == len(real)
        assert all(most >= one for most, one in zip(size, real, strict=True))


@pytest.mark.parametrize("name", ["a mask", "unique", "bincount", "nonzero"])
def test_a_bound_is_noted_with_its_place(name: str) -> None:
    mode, values = Unknown(ignored), torch.zeros(3, 2)
    with mode:
        mode.forget([values])
        BY_VALUE[name](values)
    (note,) = mode.assumptions
    assert "test_bounds.py:" in note


def test_a_known_mask_chooses_as_many_unknown_rows() -> None:
    mode, values = Unknown(ignored), torch.zeros(4, 2)
    with mode:
        mode.forget([values])
        mask = torch.tensor([True, False, True, False])
        assert values[mask].shape == (2, 2)
    assert not list(mode.assumptions)


def test_a_large_batch_of_tokens_keeps_its_values() -> None:
    with Unknown(ignored):
        tokens = torch.arange(2**18).view(64, -1)  # 2 MiB
        assert tokens[tokens < 10].shape == (10,)
        assert int(tokens.max()) == 2**18 - 1


@pytest.mark.parametrize("grouped", [(2, 3), (3, 2), (2, 2), (3, 3)])
def test_a_grouped_product_has_its_shape(grouped: tuple[int, int]) -> None:
    first = torch.randn(*((2,) if grouped[0] == 3 else ()), 16, 16)
    second = torch.randn(*((2,) if grouped[1] == 3 else ()), 16, 16)
    offs = None if grouped == (3, 3) else torch.tensor([8, 16], dtype=torch.int32)
    real = torch._grouped_mm(first, second, offs=offs)
    mode = Unknown(ignored)
    with mode:
        mode.forget([first, second])
        assert shapes(torch._grouped_mm(first, second, offs=offs)) == shapes(real)


@pytest.mark.parametrize("sizes", [(30, 8, 64, 64), (10, 8, 64, 256), (20, 8, 300, 128)])
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(
            torch.bfloat16,
            marks=pytest.mark.skipif(
                not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
                reason="oneDNN has no bfloat16 on this processor; PyTorch takes another path",
            ),
        ),
    ],
)
def test_the_workspace_of_an_lstm_is_planned(
    sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    length, rows, width, hidden = sizes
    gates = [(4 * hidden, width), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    states = [(rows, hidden), (rows, hidden)]
    values = [torch.zeros(size, dtype=dtype) for size in [(length, rows, width), *gates, *states]]
    options: tuple[Any, ...] = (False, [], 2, hidden, 1, True, False, False, True)
    real = LAYER(*values, *options)
    mode = Unknown(ignored)
    with mode:
        mode.forget(values)
        made = LAYER(*values, *options)
    assert shapes(made[:3]) == shapes(real[:3])
    assert made[3].nbytes == real[3].nbytes


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "bincount": lambda x: torch.bincount(x.long()),
    "repeat_interleave": lambda x: torch.repeat_interleave(x.long()),
    "to_sparse": torch.Tensor.to_sparse,
    "sparse": lambda x: torch.sparse_coo_tensor(torch.zeros(1, 3, dtype=torch.int64), x, (9,)),
    "sparse, of known values": lambda _: torch.ones(3).to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "wrong shapes": lambda x: x @ x.new_zeros(5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_known_is_refused_with_its_place(name: str) -> None:
    mode, values = Unknown(ignored), torch.zeros(3)
    with mode:
        mode.forget([values])
        with pytest.raises(UnplannableError, match=r"@ .*test_bounds\.py:\d+$") as raised:
            REFUSED[name](values)
    assert "\n" not in str(raised.value)


def test_gradients_of_sparse_embeddings_are_refused() -> None:
    mode, model = Unknown(ignored), torch.nn.Embedding(5, 4, sparse=True)
    with mode:
        mode.forget(model.parameters())
        made = model(torch.tensor([1, 2])).sum()
        with pytest.raises(UnplannableError, match="sparse"):
            made.backward()


def test_one_tensor_may_be_larger_than_ram() -> None:
    process = psutil.Process()
    mode = Unknown(ignored)
    with mode:
        before = process.memory_info().rss
        weight = torch.nn.Parameter(torch.empty(100_000_000_000).normal_())
        torch.autograd.backward((weight * 2).sum())
        torch.optim.AdamW([weight]).step()
        assert process.memory_info().rss - before < 2**28
    assert weight.nbytes > psutil.virtual_memory().total
