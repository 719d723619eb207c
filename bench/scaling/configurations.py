"""The configurations of `scale.py`: models, memory caps, tokens per step, and training programs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scaling.decoder import Shape

GIGA = 10**9

SHAPES = {
    "124m": Shape(12, 768, 12, 2048, 50257, tied=True),
    "1.5b": Shape(48, 1600, 25, 4288, 50257, tied=True),
    "7b": Shape(32, 4096, 32, 11008, 32000),
    "13b": Shape(40, 5120, 40, 13824, 32000),
    "50b/8": Shape(8, 8192, 64, 22016, 32000),
    "50b/16": Shape(16, 8192, 64, 22016, 32000),
    "50b": Shape(64, 8192, 64, 22016, 32000),
}
TINY = Shape(4, 64, 2, 128, 256)
BATCHES = ((16_384, 2048), (32_768, 4096))
"""Each pair has the number of tokens in a step, and the number of tokens in a sequence."""


@dataclass(frozen=True)
class Configuration:
    """One configuration. Each configuration gives one row of the table."""

    case: str
    model: str
    cap_gb: int | None
    """Limit of the process's device memory in 1e9 bytes; None for the whole card."""
    tokens: int
    sequence: int
    subject: str = "streamed"
    """The training program: `streamed`, `resident`, `fsdp2` or `torchao`."""
    optimizer: str = "adamw"
    """`adamw`, `momentum` (SGD) or `sgd`."""
    clip: str = "none"
    """How gradients are clipped: `lagged` (by the norm of the previous step) or `none`."""
    master: str = "split"
    """`split` for a float32 master in two halves, `weights` for bfloat16 weights without a
    master."""
    halves: bool = False
    """True if attention and MLP stream as separate blocks."""
    steps: int = 5
    tiny: bool = False
    """True if a toy replaces the model, to test the program on a CPU."""

    @property
    def key(self) -> str:
        """The configuration's name, for `--only`. A rerun finds finished rows by this name."""
        cap = "all" if self.cap_gb is None else f"{self.cap_gb}gb"
        parts = [self.case, self.model, cap, f"{self.tokens // 1024}k", self.optimizer]
        parts += [self.subject, self.clip]
        return "-".join(["tiny", *parts] if self.tiny else parts).lower().replace("/", "of")

    @property
    def shape(self) -> Shape:
        """Return the model's sizes."""
        return TINY if self.tiny else SHAPES[self.model]

    @property
    def samples(self) -> int:
        """Return the number of sequences in a step."""
        return self.batch[0]

    @property
    def batch(self) -> tuple[int, int]:
        """Return the number of sequences in a step, and the number of tokens per sequence."""
        samples = self.tokens // self.sequence
        return (samples, 16) if self.tiny else (samples, self.sequence)


def _beside(base: Configuration) -> list[Configuration]:
    """Return variants of a configuration: streamed with each clip mode, and not streamed.

    The variants that are not streamed are resident, FSDP2's offload and torchao's offload.
    """
    return [
        replace(base, clip="lagged"),
        base,
        replace(base, subject="resident", cap_gb=None),
        replace(base, subject="fsdp2", steps=3),
        replace(base, subject="torchao", master="weights", steps=3),
    ]


def configurations(*, tiny: bool = False) -> list[Configuration]:
    """Return all configurations, sorted by the model's size."""
    found: list[Configuration] = []
    for tokens, sequence in BATCHES:
        for case, model, cap in (
            ("C1", "124m", 4),
            ("C2", "1.5b", 16),
            ("C3", "7b", 24),
            ("C3", "7b", 16),
        ):
            found += _beside(Configuration(case, model, cap, tokens, sequence))
    for tokens, sequence in BATCHES:
        base = Configuration("C4", "13b", 24, tokens, sequence, clip="lagged", steps=3)
        found += [base, replace(base, optimizer="momentum")]
    large = Configuration("C5", "50b/8", 24, *BATCHES[0], clip="lagged", halves=True, steps=3)
    least = replace(large, model="50b", optimizer="sgd", master="weights", halves=False, steps=2)
    found += [
        large,
        replace(large, model="50b/16"),
        replace(large, model="50b/16", optimizer="momentum"),
        replace(large, model="50b"),
        replace(large, model="50b", optimizer="momentum"),
        replace(least, tokens=8192),
        least,
    ]
    unique = dict.fromkeys(replace(each, tiny=tiny) for each in found)
    return sorted(unique, key=lambda each: each.shape.parameters)
