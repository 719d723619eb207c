"""Tables of tensors: what is in them, and that one is made once."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from neaptide_kernels import tensor_table
from neaptide_kernels.tensor_table import table_of


def test_rows_say_where_tensors_are_and_chunks_whose_they_are() -> None:
    first = [torch.zeros(size) for size in (5, 0, 4, 9)]
    second = [tensor.clone() for tensor in first]
    table = table_of((first, second), 4)
    assert [[5, 0], [0, 2], [4, 2], [9, 3]] == table.rows[:, :2].tolist()
    addresses = [[one.data_ptr(), two.data_ptr()] for one, two in zip(first, second, strict=True)]
    assert addresses == table.rows[:, 2:].tolist()
    assert [0, 0, 2, 3, 3, 3] == table.owners.tolist()
    assert (6, torch.int32) == (table.chunks, table.owners.dtype)


def test_a_table_is_made_once_for_the_same_places() -> None:
    tensors = [torch.zeros(5), torch.zeros(9)]
    table = table_of([tensors], 4)
    assert table is table_of([list(tensors)], 4)
    assert table is not table_of([tensors], 8)
    assert table is not table_of([tensors[::-1]], 4)
    assert table is not table_of([tensors, tensors], 4)


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_table, "_tables", type(tensor_table._tables)())
    monkeypatch.setattr(tensor_table, "_REMEMBERED", 3)
    monkeypatch.setattr(tensor_table, "_REMEMBERED_CHUNKS", 10)
    tensors = [torch.zeros(8) for _ in range(4)]
    tables = [table_of([[tensor]], 4) for tensor in tensors]
    assert tables[1:] == list(tensor_table._tables.values())
    assert tables[1] is table_of([[tensors[1]]], 4)
    large = table_of([[torch.zeros(36)]], 4)
    assert [large] == list(tensor_table._tables.values())[-1:]
    assert 10 >= sum(table.chunks for table in tensor_table._tables.values())
    huge = table_of([[torch.zeros(400)]], 4)
    assert [huge] == list(tensor_table._tables.values())


def test_tables_are_on_the_host_whatever_the_default_device() -> None:
    tensors = [torch.zeros(5)]
    with torch.device("meta"):
        table = table_of([tensors], 2)
    assert [0, 0, 0] == table.owners.tolist()


def test_threads_find_their_own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_table, "_REMEMBERED", 8)
    tensors = [torch.zeros(size) for size in range(1, 100)]

    def chunks(chunk: int) -> list[int]:
        return [table_of([[tensor]], chunk).chunks for tensor in tensors]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(chunks, range(1, 17)))
    finally:
        sys.setswitchinterval(before)

    assert [[-(-size // chunk) for size in range(1, 100)] for chunk in range(1, 17)] == found
