"""Trains a model of any size on the simulated device, without values, and notes what runs when."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs
import simulated_gpu
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neaptide import HybridTrainer
from neaptide_plugins.layer_streaming import choices
from neaptide_toolkit.machine import facts, profiles
from neaptide_toolkit.offload import StreamLane
from neaptide_toolkit.offload.lanes import lanes_by
from scaling.decoder import Decoder, batch_of, loss_fn
from scaling.subjects import optimizer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neaptide_toolkit.offload import Ticket
    from scaling.configurations import Configuration

STEPS = 3
"""The last one is looked at. In the first two, blocks learn their order and check themselves."""
ROOM = 1 << 42
"""Bytes of the device while the model is built, and of RAM."""
_UNTOUCHED = 1 << 16

Label = tuple[int, int, str]
"""Launches before and after a work, and what the work is."""


@attrs.frozen
class Traced:
    """What ran in the last steps.

    Attributes:
        operations: name, stream, engine, start, end and bytes of each launch.
        labels: what launches are for, the outer works first.
        ends: launches at the end of each step.
        peaks: bytes: allocated and reserved on the device.
        races: how many were told.
    """

    operations: list[tuple[Any, ...]]
    labels: list[Label]
    ends: list[int]
    peaks: tuple[int, int]
    races: int


class _EnoughError(Exception):
    """Ends training before it computes a digest of all state, which would read it."""


class _Told:
    """A lane that notes which launches each copy has."""

    def __init__(self, lane: StreamLane, note: Callable[..., Any]) -> None:
        self._lane, self._note = lane, note
        self.hold, self.close = lane.hold, lane.close

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        with self._note(what):
            return self._lane.submit(what, work, after)


class _Unwritten(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Leaves large memory of the host as it is, which is zero, so that it takes no RAM."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        large = func is torch.ops.aten.zero_.default and args[0].device.type == "cpu"
        if large and args[0].nbytes > _UNTOUCHED:
            return args[0]
        return func(*args, **(kwargs or {}))


def launches() -> int:
    """Return the number of launches so far."""
    return int(simulated_gpu.statistics()["launches"])


def train(
    configuration: Configuration,
    profile: str,
    cap: int,
    pieces: int,
    settings: dict[str, Any],
    options: dict[str, Any] | None = None,
) -> Traced:
    """Train some steps of a streamed model; return what ran.

    Args:
        configuration: the model, the tokens and the optimizer.
        profile: the machine, see `profiles`.
        cap: bytes of device memory.
        pieces: micro-batches.
        settings: of the plugin, beside those of every case.
        options: of the optimizer.
    """
    simulated_gpu.configure(profiles.path_of(profile), capacity=ROOM)
    labels: list[Label] = []

    @contextmanager
    def noted(what: str) -> Iterator[None]:
        place = len(labels)
        labels.append((launches(), 0, what))
        try:
            yield
        finally:
            labels[place] = (labels[place][0], launches(), what)

    begins: list[int] = []

    def begun(model: Any, batch: Any) -> Any:
        begins.append(launches())
        if len(begins) > STEPS:
            raise _EnoughError
        return loss_fn(model, batch)

    given = {
        "blocks": "blocks.*.*" if configuration.halves else "blocks.*",
        "update": "in_backward",
        "optimizer_on": "device",
        "master": configuration.master,
        "micro_batches": pieces,
        "inputs": "host",
        "resident": 0,
        **settings,
    }
    device = torch.device("cuda", 0)
    with ExitStack() as stack:
        stack.enter_context(simulated_gpu.fake_data())
        stack.enter_context(_with_ram())
        lane = lambda _: _Told(StreamLane(device), noted)  # noqa: E731 - one call
        stack.enter_context(lanes_by(lane))
        model = Decoder(configuration.shape, torch.bfloat16, device, device)
        with _Unwritten():  # type: ignore[no-untyped-call]  # torch leaves it so
            trainer = stack.enter_context(
                HybridTrainer(
                    model,
                    optimizer_of(configuration, model.parameters(), **(options or {})),
                    loss_fn=begun,
                    config={
                        "run": {"progress": "quiet"},
                        "phases": {"warmup": {"steps": 0}},
                        "train": {"device": "cuda", "check_finite": False, "steps": STEPS + 1},
                        "plugins": {"layer-streaming": given},
                    },
                )
            )
        _tell(trainer.store.streaming, noted)
        batch = batch_of(configuration.shape, *configuration.batch, device, 0)
        torch.cuda.empty_cache()
        simulated_gpu.configure(capacity=cap)
        torch.cuda.reset_peak_memory_stats()
        before = launches()
        with simulated_gpu.timeline() as operations, suppress(_EnoughError):
            trainer.fit([batch])  # code that observes steps would end the copies after each
        ends = [one - before for one in begins[1:]]
        peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        shifted = [(one - before, other - before, what) for one, other, what in labels]
        found = Traced(operations, shifted, ends, peaks, len(simulated_gpu.races()))
        del model, trainer, batch
        stack.pop_all()  # the process ends: nothing need be taken apart
    return found


@contextmanager
def _with_ram() -> Iterator[None]:
    """Let streaming believe that there is RAM for any model. Its pages are never written."""
    known, least = choices.memory, facts.memory()
    there = attrs.evolve(least, total=ROOM, available=ROOM, group=None, process_room=None)
    choices.memory = lambda: there
    try:
        yield
    finally:
        choices.memory = known


def _tell(streaming: Any, noted: Callable[[str], Any]) -> None:
    """Note the launches of each use of a block, and of its update."""
    use, step = streaming.residency.use, streaming.updates.step

    @contextmanager
    def used(block: Any, kind: str) -> Iterator[None]:
        with noted(f"{kind} {block.name}"), use(block, kind):
            yield

    def stepped(block: Any, gradients: Any) -> None:
        with noted(f"update {block.name}"):
            step(block, gradients)

    streaming.residency.use, streaming.updates.step = used, stepped
