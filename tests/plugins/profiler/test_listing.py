"""The listing of live tensors: what is in it, once, and what is left out."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from neaptide_plugins.profiler.listing import AlikeStorages, live_tensors, totals


def of_shape(entries: list[AlikeStorages], *shape: int) -> list[AlikeStorages]:
    return [entry for entry in entries if entry.shape == list(shape)]


def test_a_tensor_is_listed_with_its_bytes() -> None:
    held = torch.zeros(7, 11, 13, dtype=torch.float16)
    (entry,) = of_shape(live_tensors().entries, 7, 11, 13)
    assert AlikeStorages("cpu", "float16", [7, 11, 13], "other", 1, held.nbytes) == entry


def test_tensors_alike_are_one_entry() -> None:
    held = [torch.zeros(7, 11, 13) for _ in range(3)]
    (entry,) = of_shape(live_tensors().entries, 7, 11, 13)
    assert (3, 3 * held[0].nbytes) == (entry.count, entry.bytes)


def test_views_of_one_storage_are_counted_once_as_the_largest() -> None:
    held = torch.zeros(7, 11, 13)
    views = [held[0], held[:3], held.view(77, 13)[:5], held.detach()]
    entries = live_tensors().entries
    (entry,) = of_shape(entries, 7, 11, 13)
    assert (1, held.nbytes) == (entry.count, entry.bytes)
    assert [] == [found for view in views[:3] for found in of_shape(entries, *view.shape)]


def test_a_view_that_repeats_its_storage_does_not_stand_for_it() -> None:
    held = torch.zeros(7, 1, 13)
    views = [held.expand(7, 11, 13), held.view(-1).unfold(0, 5, 1)]
    entries = live_tensors().entries
    assert [] == [found for view in views for found in of_shape(entries, *view.shape)]
    assert held.nbytes == sum(entry.bytes for entry in of_shape(entries, 7, 1, 13))


def test_a_tensor_that_is_gone_is_not_listed() -> None:
    held = torch.zeros(7, 11, 13)
    del held
    assert [] == of_shape(live_tensors().entries, 7, 11, 13)


def test_empty_tensors_are_passed_over() -> None:
    held = [torch.zeros(0, 11, 13), nn.UninitializedParameter()]
    listing = live_tensors()
    assert len(held) == 2
    assert [] == of_shape(listing.entries, 0, 11, 13)


class Wrapper(torch.Tensor):
    """A tensor that holds another and has no memory of its own; it can do nothing."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls: type[Wrapper], inner: torch.Tensor) -> Wrapper:  # noqa: PYI034 - no Self
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


class Unreadable(torch.Tensor):
    """A tensor whose attributes raise what they like."""

    @property
    def is_leaf(self) -> bool:
        raise KeyError

    @property
    def shape(self) -> torch.Size:
        raise KeyError


def without_memory() -> list[torch.Tensor]:
    with FakeTensorMode():
        fake = torch.zeros(7, 11, 13)
    plain = torch.zeros(7, 11, 17)
    return [
        fake,
        torch.zeros(7, 11, 13, device="meta"),
        nn.Parameter(torch.zeros(7, 11, 13, device="meta")),
        torch.ones(7, 11, 13).to_sparse(),
        torch.zeros(7, 11, 23).as_subclass(Unreadable),
        Wrapper(plain),
        torch._to_functional_tensor(torch.zeros(7, 11, 19)),
    ]


KINDS = {"FakeTensor": 1, "Unreadable": 1, "Wrapper": 1, "meta": 2, "sparse_coo": 1, "wrapper": 1}


def test_tensors_whose_memory_torch_does_not_show_are_counted_by_kind() -> None:
    gc.collect()
    before = live_tensors().left_out
    held = without_memory()
    listing = live_tensors()
    assert len(held) == sum(KINDS.values())
    assert KINDS == {kind: listing.left_out[kind] - before.get(kind, 0) for kind in KINDS}
    assert [] == of_shape(listing.entries, 7, 11, 13)
    assert 1 == len(of_shape(listing.entries, 7, 11, 17))


def test_a_nested_tensor_is_listed_by_its_elements() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        held = torch.nested.nested_tensor([torch.zeros(7, 11), torch.zeros(13, 11)])
    entries = live_tensors().entries
    assert 20 * 11 * 4 == sum(entry.bytes for entry in of_shape(entries, held.numel()))


def test_categories_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(7, 11, bias=False), nn.BatchNorm1d(11, affine=False))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 7)).sum().backward()
    optimizer.step()
    entries = live_tensors(model, optimizer).entries
    assert {"parameter": 1, "gradient": 1, "optimizer_state": 2} == {
        entry.category: entry.count for entry in of_shape(entries, 11, 7)
    }
    assert ["buffer"] == [e.category for e in of_shape(entries, 11) if e.category != "other"]
    assert 11 * 7 * 4 == totals(entries)["cpu"]["gradient"]


def test_a_gradient_nobody_holds_but_its_tensor_is_listed() -> None:
    held = torch.ones(7, 11, 13, requires_grad=True)
    held.sum().backward()
    assert 2 == sum(entry.count for entry in of_shape(live_tensors().entries, 7, 11, 13))
