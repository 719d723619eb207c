"""Models of a program whose default dtype is float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def default_is_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("default_is_float64")
@pytest.mark.parametrize("plugins", [{}, {"layer-streaming": {"update": "in_backward"}}])
def test_gradients_are_checked_in_float64(plugins: dict[str, Any]) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))).to(DEVICE)
    batches = [torch.ones(2, 4, device=DEVICE), torch.full((2, 4), torch.inf, device=DEVICE)]
    config = {"phases": {"warmup": {"steps": 0}}, "plugins": plugins}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with HybridTrainer(
        model, optimizer, loss_fn=lambda model, x: (model(x) * x).square().mean(), config=config
    ) as trainer:
        found = [trainer.step(batch).outcome for batch in (*batches, *batches)]

    assert [Outcome.APPLIED, Outcome.SKIPPED] * 2 == found
