"""Parts of the weights are compared in turn: a changed value is found in one round."""

from __future__ import annotations

import pytest
import torch
from support import DEVICE

from neaptide_plugins.sharding import reducing
from neaptide_plugins.sharding.reducing import Windows


@pytest.mark.parametrize("place", range(4))
def test_each_part_is_compared_in_a_round(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(reducing, "_WINDOW", 3)
    weights = [torch.arange(5.0, device=DEVICE), torch.ones(4, device=DEVICE)]
    before = Windows.of_rows(weights)
    known = [before.checksum() for _ in range(4)]
    weights[place // 2][3 * (place % 2)] += 1.0
    after = [before.checksum() for _ in range(4)]
    assert [one != other for one, other in zip(known, after, strict=True)] == [
        number == place for number in range(4)
    ]


def test_rows_of_which_a_process_has_none_count_as_a_part() -> None:
    assert Windows.of_rows([torch.empty(0, 2, device=DEVICE)]).checksum() == 0
