"""Your own training loop, module, optimizer and loss.

The module is a GRU that predicts Python code.

Run it with `python examples/own_loop.py`.
"""

import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from neaptide import HybridTrainer, Loss


class ByteGru(nn.Module):
    """Predicts the next byte from the bytes before it."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.cells = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map int64 `[B, T]` to logits `[B, T, 256]`."""
        hidden, _ = self.cells(self.embed(tokens))
        return self.head(hidden)


def loss_fn(model: nn.Module, tokens: torch.Tensor) -> Loss:
    """Return the sum and the count of the losses.

    With both numbers, micro-batches of any size are weighted exactly.
    """
    logits = model(tokens[:, :-1])
    targets = tokens[:, 1:]
    total = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return Loss(total, targets.numel())


def main() -> None:
    """Train for 100 steps, and print the result of each step."""
    torch.manual_seed(0)
    source = Path(sysconfig.get_path("stdlib"), "typing.py").read_bytes()
    text = torch.frombuffer(bytearray(source), dtype=torch.uint8).long()
    model = ByteGru()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    config = {
        "phases": {"warmup": {"steps": 20}, "full": {"steps": 30}, "correct": {"steps": 10}},
        "plugins": {"predictor-drift": {"min_window": 20}, "ema": {"decay": 0.95}},
    }
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        for _ in range(100):
            starts = torch.randint(0, len(text) - 65, (16,))
            batch = torch.stack([text[start : start + 65] for start in starts])
            result = trainer.step(batch)
            if result.jump is not None:
                print(f"step {result.step}: jump over {result.jump.horizon} updates", end=" ")
                print("accepted" if result.was_predicted else f"refused: {result.jump.reason}")
            if result.step % 20 == 0:
                print(f"step {result.step}: {result.phase}, loss {result.loss:.3f}")
        held_out = text[: 65 * 16].reshape(16, 65)
        print(f"loss of the averaged weights: {trainer.evaluate([held_out]):.3f}")


if __name__ == "__main__":
    main()
