"""Trains the network that the idea `learned` of predict.py proposes jumps with.

    python bench/predictions/learning.py

A network continues a weight's history, as Introspection does (Sinha et al., 2017). There is one for
each task, which has learned from runs of the two other tasks. The command tells what each explains
of runs of its own task. The networks are stored below runs/learned/, under a digest of this file.
The command does nothing if they are there.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import nn

from neaptide import HybridTrainer
from neaptide.config import load
from neaptide.hooks.registry import installed_plugins
from neaptide.io.folder import replace_file
from neaptide.run import assembly

if TYPE_CHECKING:
    from neaptide.loop.state import TrainState


BENCH = Path(__file__).parents[1]
TASKS = ("byte-gpt", "noisy-digits", "photo")
SEEDS = (0, 1)
PARTS = 5
"""Means of a weight's history that the network sees, each of a fifth of a window."""
AHEAD = 0.25
"""Share of the window's length that a jump replaces."""
_WIDTH = 32
_TINY = 1e-20


_EVERY, _KEPT, _ROUNDS, _BATCH = 5, 2000, 4000, 8192


class Proposer(nn.Module):
    """Proposes each weight's change from its history. An odd function: -history gives -change."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PARTS, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH), nn.GELU(),
            nn.Linear(_WIDTH, 1),
        )  # fmt: skip

    def forward(self, history: torch.Tensor, progress: torch.Tensor) -> torch.Tensor:
        """Return changes `[n]` of histories `[n, PARTS - 1]` and the run's progress `[n]`."""
        up, down = (
            self.layers(torch.cat([sign * history, progress[:, None]], 1)) for sign in (1.0, -1.0)
        )
        return (up - down).squeeze(1)


def history_of(means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return histories `[n, PARTS - 1]` of a tensor's means `[PARTS, n]`, and their unit `[]`.

    The unit is the root mean square of the change of the tensor's weights over the window.
    """
    changes = means[:-1] - means[-1]
    unit = changes[0].square().mean().sqrt().clamp_min(_TINY)
    return (changes / unit).T, unit


def network_file(unseen: str) -> Path:
    """Return where the network is that has not seen a task, under a digest of what decides it."""
    parts = [Path(__file__).read_bytes(), torch.__version__.encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return BENCH.parent / "runs" / "learned" / f"{digest}-{unseen}.safetensors"


def histories(task: str, seed: int) -> tuple[torch.Tensor, list[int]]:
    """Return some weights of a run, `[samples, weights]`, and how many are of each tensor."""
    files = [BENCH / "predict" / f"{name}.toml" for name in (task, "adamw")]
    config = load(
        files, specs=installed_plugins(), sets=[f"seed={seed}", "run.progress=quiet"]
    ).config
    kept: list[torch.Tensor] = []
    generator = torch.Generator().manual_seed(seed)
    with HybridTrainer.from_config(config) as trainer:
        flat = [weight for weight in trainer.model.parameters() if weight.requires_grad]
        chosen = [torch.randperm(one.numel(), generator=generator)[:_KEPT] for one in flat]

        def keep(_result: Any, state: TrainState) -> None:
            if state.step % _EVERY == 0:
                pairs = zip(flat, chosen, strict=True)
                kept.append(torch.cat([one.detach().reshape(-1)[index] for one, index in pairs]))

        trainer.fit(assembly.build_data(trainer.config, trainer.hooks), observe=keep)
    return torch.stack(kept), [len(index) for index in chosen]


def examples(
    samples: torch.Tensor, sizes: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return histories, progress and changes, each in units of its tensor."""
    found: list[tuple[torch.Tensor, ...]] = []
    for end in range(60, len(samples), 8):
        part = max(20, min(160, end // 3)) // PARTS
        ahead = round(PARTS * part * AHEAD)
        if end + ahead + part // 2 + 1 > len(samples):
            break
        window = samples[end - PARTS * part : end].view(PARTS, part, -1).mean(1)
        later = samples[end + ahead - part // 2 : end + ahead + part // 2 + 1].mean(0)
        # The last mean lies half a part before the window's end.
        change = (later - window[-1]) * (ahead / (ahead + part / 2))
        for means, moved in zip(window.split(sizes, 1), change.split(sizes), strict=True):
            history, unit = history_of(means)
            progress = torch.full_like(moved, end / len(samples))
            found.append((history, progress, moved / unit))
    return tuple(torch.cat(each) for each in zip(*found, strict=True))  # type: ignore[return-value]


def trained(history: torch.Tensor, progress: torch.Tensor, change: torch.Tensor) -> Proposer:
    """Return a network fitted to examples by least squares."""
    torch.manual_seed(0)
    network = Proposer()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _ROUNDS)
    for _ in range(_ROUNDS):
        index = torch.randint(len(change), (_BATCH,))
        error = network(history[index], progress[index]) - change[index]
        loss = torch.nn.functional.huber_loss(error, torch.zeros_like(error), delta=2.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network


def explained(network: Proposer, given: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """Return the share of the changes' squares that the network explains, and that drift does."""
    history, progress, change = given
    with torch.no_grad():
        proposed = network(history, progress)
    # Half of the drift between the halves of a window, from its five means.
    drift = 0.5 * (history @ torch.tensor([-0.4, -0.4, 0.0, 0.4]))
    total = change.square().sum()
    return {
        name: float(1.0 - (change - one).square().sum() / total)
        for name, one in (("network", proposed), ("drift", drift))
    }


def main() -> None:
    """Train a network for each task, and tell what it explains of the task's runs."""
    files = {task: network_file(task) for task in TASKS}
    if all(path.is_file() for path in files.values()):
        print(*files.values(), sep="\n")
        return
    sys.path.insert(0, str(BENCH))  # the tasks' modules
    made = {(task, seed): examples(*histories(task, seed)) for task in TASKS for seed in SEEDS}
    fewest = min(len(changes) for _, _, changes in made.values())
    generator = torch.Generator().manual_seed(0)
    for unseen, path in files.items():
        picked = []
        for (task, _), parts in made.items():
            if task != unseen:
                order = torch.randperm(len(parts[2]), generator=generator)[:fewest]
                picked.append([part[order] for part in parts])
        network = trained(*(torch.cat(each) for each in zip(*picked, strict=True)))
        print(unseen, explained(network, made[unseen, SEEDS[0]]))
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, save(network.state_dict()))
        print(path)


if __name__ == "__main__":
    main()
