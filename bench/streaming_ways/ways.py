"""The subjects of `streaming.py`: a trainer without streaming, and one for each way to stream."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from scaling.decoder import Decoder, Shape, batch_of, loss_fn
from torch.profiler import ProfilerActivity, profile

from neaptide import HybridTrainer
from neaptide_plugins.layer_streaming.accounting import held
from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_toolkit.offload import lies_in_slab, mapped_slabs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

RECOMPUTED = "resident, recompute"
ACCUMULATED = "resident, recompute, accumulation 4"
PLAIN = "resident"


@dataclass(frozen=True)
class Size:
    """The sizes of a model and of its batches."""

    name: str
    shape: Shape
    samples: int
    sequence: int


SIZES = tuple(
    Size(f"{blocks} x {width}", Shape(blocks, width, width // 32, 3 * width, 512), 8, 32)
    for blocks, width in ((8, 64), (8, 192), (8, 384))
)
QUICK = (Size("4 x 32", Shape(4, 32, 2, 64, 64), 4, 8),)
LARGE = (Size("12 x 768", Shape(12, 768, 12, 3 * 768, 512), 8, 128),)


@dataclass(frozen=True)
class Way:
    """One way to stream."""

    update: str
    optimizer_on: str
    micro_batches: int
    half_resident: bool

    @property
    def name(self) -> str:
        """The way's name in a table."""
        where = "in backward" if self.update == "in_backward" else f"after, on {self.optimizer_on}"
        resident = "half" if self.half_resident else "none"
        return f"{where}; micro-batches {self.micro_batches}; resident {resident}"

    def plugins(self, blocks: int) -> dict[str, dict[str, Any]]:
        """Return the plugins of a configuration that streams in this way."""
        settings: dict[str, Any] = {
            "update": self.update,
            "optimizer_on": self.optimizer_on,
            "micro_batches": self.micro_batches,
            "resident": blocks // 2 if self.half_resident else 0,
        }
        return {"layer-streaming": settings}

    def settings(self, blocks: int) -> StreamingSettings:
        """Return the settings of the streaming mechanism, for use without plugins."""
        return StreamingSettings(
            micro_batches=self.micro_batches,
            resident=blocks // 2 if self.half_resident else 0,
            on_device=self.optimizer_on == "device",
            in_backward=self.update == "in_backward",
        )


WAYS = tuple(
    Way(update, where, micro_batches, half_resident)
    for update, where in (
        ("after_backward", "cpu"),
        ("after_backward", "device"),
        ("in_backward", "device"),
    )
    for micro_batches in (1, 4)
    for half_resident in (False, True)
)


README = {
    "no plugin": PLAIN,
    "`activation-checkpointing`": RECOMPUTED,
    "`layer-streaming`": "after, on cpu; micro-batches 1; resident none",
    '… with `optimizer_on = "device"`': "after, on device; micro-batches 1; resident none",
    '… with `update = "in_backward"`': "in backward; micro-batches 1; resident none",
}
"""The rows of the README's table: the row's label, which is the enabled plugin, and the subject."""


class Subject:
    """A trainer of one size that trains on the same batch at each step."""

    def __init__(self, size: Size, plugins: dict[str, dict[str, Any]]) -> None:
        torch.manual_seed(0)
        before = mapped_slabs()
        model = Decoder(size.shape)
        self.trainer = HybridTrainer(
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-4),
            loss_fn=loss_fn,
            config={
                "phases": {"warmup": {"steps": 0}},
                "train": {"device": "cpu"},
                "plugins": plugins,
            },
        )
        self._batch = batch_of(size.shape, size.samples, size.sequence, "cpu", 0)
        self._streaming = getattr(self.trainer.store, "streaming", None)
        self._slabs = mapped_slabs() - before
        self.loss = float("nan")

    def step(self) -> None:
        """Make one update."""
        before = mapped_slabs()
        self.loss = self.trainer.step(self._batch).loss
        self._slabs |= mapped_slabs() - before

    def fetched(self) -> tuple[int, int]:
        """Return the number of fetches so far, and how many of them delayed the computation."""
        if self._streaming is None:
            return 0, 0
        return self._streaming.residency.fetches, self._streaming.residency.waited_for

    def held(self) -> int:
        """Return the bytes that are on the device between two steps."""
        streamed = self._streamed()
        there = [p for p in self.trainer.model.parameters() if p not in streamed]
        lent = 0 if self._streaming is None else sum(held(self._streaming).values())
        return sum(tensor.nbytes for tensor in (*there, *self._state(there))) + lent

    def held_in_ram(self) -> int:
        """Return the bytes that streaming keeps in RAM, not on the device, between two steps."""
        state = [value for value in self._state(self._streamed()) if not lies_in_slab(value)]
        return sum(map(len, self._slabs)) + sum(value.nbytes for value in state)

    def _streamed(self) -> set[torch.nn.Parameter]:
        blocks = [] if self._streaming is None else self._streaming.blocks
        return {parameter for block in blocks for parameter in block.parameters}

    def _state(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
        return [
            value
            for parameter in parameters
            for value in self.trainer.optimizer.state.get(parameter, {}).values()
            if isinstance(value, torch.Tensor)
        ]


NAMES = (PLAIN, RECOMPUTED, ACCUMULATED, *(way.name for way in WAYS))


def subjects(size: Size, names: Collection[str] = NAMES) -> dict[str, Subject]:
    """Return the subjects by name: resident training, and ways to stream."""
    recompute: dict[str, dict[str, Any]] = {"activation-checkpointing": {"interval": 1}}
    plugins = {PLAIN: {}, RECOMPUTED: recompute}
    plugins[ACCUMULATED] = {**recompute, "gradient-accumulation": {"steps": 4}}
    plugins |= {way.name: way.plugins(size.shape.blocks) for way in WAYS}
    return {name: Subject(size, plugins[name]) for name in names}


def most_allocated(action: Callable[[], Any]) -> int:
    """Return the peak bytes of torch's CPU allocator during `action`.

    Bytes that were held before `action` are subtracted.
    """
    gc.collect()
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        action()
    found = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in found if is_memory(event))
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def is_memory(event: Any) -> bool:
    """Return whether a profiler event records an allocation or a free."""
    return event.name() == "[memory]"
