"""Memory that runs out inside a block: smaller pieces, or a line that says what would help."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import DEVICE
from torch import nn
from torch.nn import functional

from neaptide import HybridTrainer
from neaptide_plugins.layer_streaming.oom import explanation, is_out_of_memory


class Hungry(nn.Module):
    """Fails like an allocator for more than `most` samples, always or in the backward only."""

    def __init__(
        self, *, most: int, when: str = "any", norm: bool = False, drop: float = 0
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.norm: nn.Module = nn.BatchNorm1d(8) if norm else nn.LayerNorm(8)
        self.drop = nn.Dropout(drop)
        self.most, self.when = most, when

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        in_backward = torch._C._current_graph_task_id() != -1
        if len(x) > self.most and (self.when == "any" or in_backward):
            msg = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity"
            raise torch.OutOfMemoryError(msg)
        return x + self.drop(self.layer(self.norm(x)).tanh())


def trained(config: dict[str, Any], **options: Any) -> tuple[HybridTrainer, list[float]]:
    torch.manual_seed(0)
    model = nn.Sequential(*[Hungry(**options) for _ in range(3)]).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(net: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(net(x), torch.zeros_like(x))

    trainer = HybridTrainer(model, optimizer, loss_fn=loss, config={"plugins": config})
    with trainer:
        losses = [trainer.step(torch.randn(8, 8).to(DEVICE)).loss for _ in range(3)]
    return trainer, losses


@pytest.mark.parametrize("when", ["any", "backward"])
def test_a_block_goes_on_in_smaller_pieces_of_the_same_batch(when: str) -> None:
    _, plain = trained({}, most=8)
    trainer, losses = trained({"layer-streaming": {}}, most=3, when=when)
    assert losses == pytest.approx(plain, rel=1e-6)
    units = trainer.store.streaming.units  # type: ignore[attr-defined]  # the plugin's store
    assert [4, 4, 4] == [unit.micro_batches for unit in units]


@pytest.mark.parametrize(
    "options",
    [{"most": 3, "norm": True}, {"most": 0}, {"most": 3, "when": "backward", "drop": 0.5}],
)
def test_what_cannot_be_split_ends_in_one_line_that_says_where(options: dict[str, Any]) -> None:
    with pytest.raises(torch.OutOfMemoryError) as failed:
        trained({"layer-streaming": {"max_active_layers": 3, "resident": 1}}, **options)
    text = str(failed.value)
    assert "\n" not in text
    assert text.startswith("out of memory in full, ")
    assert "block '" in text
    assert "held: slots " in text
    assert "max_active_layers = 2 saves " in text
    assert "resident = 0 saves " in text


def test_another_error_passes_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes"))
    assert is_out_of_memory(RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory"))
    assert is_out_of_memory(RuntimeError("could not create a primitive"))  # oneDNN's words


def test_savings_of_nothing_are_not_advice() -> None:
    text = explanation("no\nmemory. More", "full, forward", {"slots": 2048, "x": 0}, {"y": 0})
    assert (
        "out of memory in full, forward (no memory); held: slots 2.00 KiB; "
        "a smaller train.batch_size helps"
    ) == text
