"""Records the copies and the computation of blocks, and computes how much they overlap."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from scaling.decoder import Decoder, Shape, batch_of

from neaptide_plugins.layer_streaming.streaming import Streaming
from neaptide_toolkit.recompute import find_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide_plugins.layer_streaming.settings import StreamingSettings

    Span = tuple[str, str, float, float]
    """Lane, name of the work, start and end in seconds of `time.perf_counter`."""

COMPUTE = "compute"
LEARNING = 2
"""Number of steps until the order of blocks and the optimizer state are known."""


def timeline(
    shape: Shape, samples: int, sequence: int, settings: StreamingSettings, steps: int
) -> list[Span]:
    """Return the time spans of all copies and uses of blocks in `steps` steps, sorted by start."""
    torch.manual_seed(0)
    model = Decoder(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    spans: list[Span] = []
    streaming = Streaming(
        model,
        find_blocks(model),
        optimizer,
        torch.device("cpu"),
        settings,
        listener=lambda *span: spans.append(span),
    )
    watch(streaming, spans)
    batch = batch_of(shape, samples, sequence, "cpu", 0)
    try:
        for step in range(LEARNING + steps):
            if step == LEARNING:
                streaming.settle()
                spans.clear()
            model(*batch).backward()
            streaming.gradients.flush()
            streaming.step()
            streaming.gradients.drop()
            optimizer.zero_grad()
        streaming.settle()
    finally:
        streaming.close()
    return sorted(spans, key=lambda span: span[2])


def watch(streaming: Streaming, spans: list[Span]) -> None:
    """Record every use of a block on the device, excluding the wait for the block's weights."""
    use = streaming.residency.use

    @contextmanager
    def watched(block: Any, moment: Any) -> Iterator[None]:
        with use(block, moment):
            start = time.perf_counter()
            try:
                yield
            finally:
                spans.append((COMPUTE, f"{moment} {block.name}", start, time.perf_counter()))

    streaming.residency.use = watched


def overlap(spans: Sequence[Span]) -> float | None:
    """Return the share of the time of all copies that overlaps with the computation of a block.

    None if there are no copies.
    """
    computed = [(start, end) for lane, _, start, end in spans if lane == COMPUTE]
    copied = [(start, end) for lane, _, start, end in spans if lane != COMPUTE]
    whole = sum(end - start for start, end in copied)
    beside = sum(
        max(0.0, min(end, until) - max(start, since))
        for start, end in copied
        for since, until in computed
    )
    return beside / whole if whole else None


def trace(spans: Sequence[Span]) -> dict[str, Any]:
    """Return the spans in the Trace Event format of Perfetto and chrome://tracing."""
    lanes = sorted({lane for lane, *_ in spans})
    origin = min((start for _, _, start, _ in spans), default=0.0)
    names = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": lane}}
        for number, lane in enumerate(lanes)
    ]
    events = [
        {
            "ph": "X",
            "name": what,
            "cat": lane,
            "pid": 1,
            "tid": lanes.index(lane),
            "ts": (start - origin) * 1e6,
            "dur": (end - start) * 1e6,
        }
        for lane, what, start, end in spans
    ]
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}
