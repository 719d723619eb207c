"""Defines the task `finetune` of predict.py: a byte GPT of Python sources learns C++ headers.

    python bench/predictions/finetuning.py

The command trains the model of bench/predict/byte-gpt.toml, with its AdamW, and stores the weights
below runs/pretrained/, under a digest of all that decides them. It does nothing if they are there.
The headers are those that torch ships, of c10 and ATen/core: 2.8 MB, split by file.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import torch
from safetensors.torch import load_file, save_file
from torch.utils import cpp_extension

from neaptide import Data, HybridTrainer, Loss, Task
from neaptide.config import load
from neaptide.hooks.registry import installed_plugins
from neaptide.io.folder import replace_file
from neaptide_plugins.builtin_data.stream import EndlessBatches
from neaptide_plugins.builtin_data.text import (
    ByteBatches,
    EvalWindows,
    in_validation,
    stdlib_bytes,
)
from neaptide_plugins.builtin_models.byte_gpt import ByteGpt, loss
from neaptide_plugins.builtin_models.config import ByteGptOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).parents[1] / "predict"
FILES = ("byte-gpt", "adamw", "pace")
STORE = Path(__file__).parents[2] / "runs" / "pretrained"
FOLDERS = ("c10", "ATen/core")
_VALIDATION_SHARE = 0.1


def weights_file() -> Path:
    """Return where the weights are, under a digest of the configuration and the versions."""
    parts = [(HERE / f"{name}.toml").read_bytes() for name in FILES]
    versions = f"{torch.__version__} {platform.python_version()}".encode()
    digest = hashlib.sha256(b"\0".join([*parts, versions]))
    return STORE / f"{digest.hexdigest()[:16]}.safetensors"


def pretrained() -> Task:
    """Return the byte GPT with the stored weights; FileNotFoundError tells the command."""
    path = weights_file()
    if not path.is_file():
        msg = f"{path} is not there: run `python bench/predictions/finetuning.py` first"
        raise FileNotFoundError(msg)
    options = load([HERE / "byte-gpt.toml"], specs=installed_plugins()).config.model.options
    model = ByteGpt(ByteGptOptions(**options))
    model.load_state_dict(load_file(path))
    return Task(model, next_byte)


def next_byte(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
    """Return the loss of `builtin:byte-gpt`."""
    return Loss(*loss(model, batch))


def headers(batch_size: int, seed: int, context: int = 64, held_out: int = 1024) -> Data:
    """Return windows of the headers: `{"tokens": int64 [batch_size, context + 1]}`.

    `held_out` windows are for validation.
    """
    training, validation = (_joined(held=held) for held in (False, True))
    return Data(
        ByteBatches(training, context, batch_size, seed),
        EvalWindows(validation, context, batch_size, held_out),
    )


def few_headers(batch_size: int, seed: int, windows: int = 1600) -> Data:
    """Return the windows of `headers`, but only `windows` of them, in epochs in random order."""
    context, evaluated = 64, 1024
    every = EvalWindows(_joined(held=False), context, batch_size, windows)
    kept = torch.cat([batch["tokens"] for batch in every])
    validation = EvalWindows(_joined(held=True), context, batch_size, evaluated)
    return Data(EpochBatches(kept, batch_size, seed), validation)


@attrs.define(eq=False)
class EpochBatches(EndlessBatches):
    """Batches `{"tokens": int64 [batch_size, n]}` of rows; each epoch has each row once."""

    rows: torch.Tensor
    batch_size: int
    seed: int

    def batch(self, index: int) -> dict[str, torch.Tensor]:
        """Return batch number `index`; an epoch's last rows are left out if they fill no batch."""
        epoch, place = divmod(index, len(self.rows) // self.batch_size)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.rows), generator=generator)
        start = place * self.batch_size
        return {"tokens": self.rows[order[start : start + self.batch_size]]}


def _joined(*, held: bool) -> torch.Tensor:
    text = b"\n".join(
        path.read_bytes()
        for name, path in sorted(_found())
        if held == in_validation(name, _VALIDATION_SHARE)
    )
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _found() -> Iterator[tuple[str, Path]]:
    roots = [Path(path) for path in cpp_extension.include_paths()]
    for root in dict.fromkeys(roots):
        for folder in FOLDERS:
            for path in (root / folder).rglob("*.h"):
                yield path.relative_to(root).as_posix(), path


def main() -> None:
    """Train, and store the weights, unless they are there."""
    path = weights_file()
    if not path.is_file():
        files = [HERE / f"{name}.toml" for name in FILES]
        config = load(files, specs=installed_plugins()).config
        training, _ = stdlib_bytes()
        size, seed = config.train.batch_size, config.seed
        with HybridTrainer.from_config(config) as trainer:
            trainer.fit(ByteBatches(training, config.data.options["context"], size, seed))
            weights = {name: one.clone() for name, one in trainer.model.state_dict().items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        save_file(weights, part)
        replace_file(path, part.read_bytes())
        part.unlink()
    print(path)


if __name__ == "__main__":
    main()
