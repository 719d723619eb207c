"""Trains a configuration without values: every phase once, and what it takes of a machine."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import attrs
import psutil
from torch.utils._python_dispatch import _disable_current_modes

from neaptide import HybridTrainer
from neaptide.errors import DataError, NeaptideError, PluginError, described
from neaptide.hooks.registry import installed_plugins
from neaptide.run import assembly
from neaptide.run.fit import FITTING, leave_weights
from neaptide_kernels.parts import parts_by
from neaptide_toolkit.machine import profiles
from neaptide_toolkit.machine.pretended import as_if
from neaptide_toolkit.offload.lanes import lanes_by
from neaptide_toolkit.offload.pages import watched
from neaptide_toolkit.recompute.repeated import repeated_by
from neaptide_toolkit.tensors import nested_tensors

from .allocations import DEVICE, AllocationLog, Check, no_limit
from .as_cuda.attention import as_cuda_attends
from .as_cuda.autocasting import as_cuda_casts
from .as_cuda.computing import as_cuda_steps, computing_on_device
from .assumptions import UnplannableError
from .clock import Clock, Times
from .own.ops import OwnOps
from .own.parts import two_calls, two_micro_batches, two_parts, two_rows
from .processes.link import linked
from .processes.rows import RowsToGather
from .reading import reads_by
from .recurrent.on_gpu import recurrent_as_cuda
from .undispatched import all_dispatched
from .undispatched.kernels import temporary, temporary_anywhere
from .unknown import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from neaptide.api.steps import StepResult
    from neaptide.config import RunConfig
    from neaptide_toolkit.machine.profiles import Rates

    from .processes.places import Processes

_MOMENTS = {
    "around_forward": "forward",
    "around_backward": "backward",
    "around_optimizer_step": "update",
    "around_predict": "predict",
    "around_evaluate": "evaluate",
}
_ANY = "rtx4090"  # a profile whose times nobody reads
_STEPS = 3
"""Full steps: the first makes the optimizer's state, the last one is timed."""
_MOST = 12
"""Steps at most: a predictor that does not jump before is not planned in Predict."""
_NO_JUMP = "no jump was made without values, so what Predict and Correct take is not in this plan"


@attrs.frozen(kw_only=True)
class DryRun:
    """What training took, without values.

    Attributes:
        allocations: all memory, in order of time.
        times: of the last Full step, on each machine whose rates are known.
        written: bytes that this step wrote to a disk.
        tokens: tokens in a batch; None if a batch has no tokens.
        process: bytes of RAM of this process, with PyTorch and the data, without tensors.
        assumptions: what is taken for granted of values that decide, each in one line, with the
            file and line of the code.
        jumped: whether Predict and Correct were run, too; None if no plugin predicts.
        sent: bytes that this process sends to others in that step, by collective.
    """

    allocations: AllocationLog
    times: tuple[Times, ...]
    written: int
    tokens: int | None
    process: int
    assumptions: tuple[str, ...]
    jumped: bool | None
    sent: Mapping[str, int]


def dry_run(
    config: RunConfig,
    machines: Sequence[Rates],
    kind: str,
    check: Check = no_limit,
    processes: Processes | None = None,
) -> DryRun:
    """Build the model, the data and the optimizer of `config`, and train it without values.

    Args:
        config: no file of its run directory is written.
        machines: the rates of those that are planned; none if they are unknown.
        kind: `cpu`, or `cuda` for a device with memory of its own.
        check: as in `AllocationLog`; what it raises ends the dry run.
        processes: those of the run, if it has several. The machines are those of one process.

    Raises:
        NeaptideError: the configuration cannot run, or its model needs values.
    """
    accelerated = kind != "cpu"
    log = AllocationLog(accelerated=accelerated, check=check)
    clock = Clock(machines or [profiles.load(_ANY).rates], log.is_on_host, log.is_on_disk)
    clock.held, log.held.now = log.hold, lambda: clock.enqueued
    own = OwnOps(lambda one: accelerated and not log.is_on_host(one))
    rows = RowsToGather(clock, log)
    known = temporary_anywhere if accelerated else temporary

    def taken(operation: Any, args: tuple[Any, ...], made: Any) -> int:
        return known(operation, args, made) + own.workspace(operation, args)

    def plain(*work: Any) -> Callable[[], Any] | None:
        return own.plain(*work) or rows.in_plain(*work)

    mode = Unknown(log.made, clock.ran, taken, plain)

    def mapped(pages: Any, flat: torch.Tensor) -> None:
        log.mapped(pages, flat)
        mode.forget([flat])

    with ExitStack() as inside:
        inside.enter_context(as_if(kind))
        inside.enter_context(lanes_by(clock.lane))
        inside.enter_context(watched(mapped))
        inside.enter_context(_shortened(mode, log, clock, accelerated=accelerated))
        inside.enter_context(log.resized())
        inside.enter_context(all_dispatched(log.made))
        inside.enter_context(reads_by(mode))
        inside.enter_context(_explained(mode))
        linking = linked(processes, machines, clock, log, mode, rows, streams=accelerated)
        inside.enter_context(linking)
        inside.enter_context(mode)
        if accelerated:
            inside.enter_context(computing_on_device(log))
            inside.enter_context(recurrent_as_cuda(mode.assumptions.note))
            inside.enter_context(as_cuda_attends(mode.is_unknown, mode.assumptions.note))
            inside.enter_context(as_cuda_casts())
        trainer = inside.enter_context(HybridTrainer.from_config(_prepared(config, kind)))
        if accelerated:
            as_cuda_steps(trainer.optimizer, log)
        batches, evaluated = _batches(config, trainer)
        trainer.run.timeline.listen(_listener(log, trainer, mode))

        def train(batch: Any, phase: str) -> StepResult:
            clock.restart()
            result = trainer.step(batch, phase=phase)
            _name(log, trainer)
            return result

        for batch in batches:
            result = train(batch, "full")
        times, written, sent = clock.spent() if machines else (), clock.written, dict(clock.sent)
        predicts = any("predictor" in spec.claims for spec in trainer.hooks.specs.values())
        jumped = _jump(train, batches[-1]) if predicts else None
        if evaluated is not None:
            log.during = "evaluate"
            trainer.evaluate(evaluated)
        return DryRun(
            allocations=log,
            times=times,
            written=written,
            tokens=result.tokens,
            process=psutil.Process().memory_info().rss,
            assumptions=(*mode.assumptions, *([_NO_JUMP] if jumped is False else [])),
            jumped=jumped,
            sent=sent,
        )


def _batches(config: RunConfig, trainer: HybridTrainer) -> tuple[list[Any], list[Any] | None]:
    """Return what is trained, and what is evaluated, if anything is. Steps are as in a fit.

    Raises:
        DataError: there is nothing to train.
    """
    with _disable_current_modes():  # data have values
        data = assembly.build_data(config, trainer.hooks)
        batches = [*islice(cycle(data.train), _STEPS)]
        evaluated = None if data.validation is None else [*islice(data.validation, 1)]
    if not batches:
        msg = "the training data gave no batch @ data.name"
        raise DataError(msg)
    if leave_weights(data, None):
        trainer.run.stash.set(FITTING, object())
    return batches, evaluated


@contextmanager
def _shortened(
    mode: Unknown, log: AllocationLog, clock: Clock, *, accelerated: bool
) -> Iterator[None]:
    """Run two of any number of equal parts of the work."""
    times = clock.times
    parts = two_parts(mode.is_unknown, log.is_on_host, times, accelerated=accelerated)
    with (
        parts_by(parts, two_rows(log.is_on_host, mode.forget, times)),
        repeated_by(two_calls(mode.alike, log, times)),
        two_micro_batches(log, times),
    ):
        yield


def _jump(train: Callable[[Any, str], StepResult], batch: Any) -> bool:
    """Train until a jump is made and corrected; return whether it was made."""
    for _ in range(_MOST):
        try:
            result = train(batch, "predict")
        except UnplannableError:
            return False  # the predictor reads values
        if result.jump is not None:
            train(batch, "correct")
            return True
    return False


def _prepared(config: RunConfig, kind: str) -> RunConfig:
    """Return the configuration without files, and with what plugins set in a dry run."""
    device = "cpu" if kind == "cpu" else str(DEVICE)
    specs, plugins = installed_plugins().usable(), {}
    for name, settings in config.plugins.items():
        own = specs[name].dry_run
        try:
            plugins[name] = attrs.evolve(settings, **own)
        except (TypeError, ValueError) as error:
            msg = (
                f"plugin {name!r}: its settings refuse its dry_run {own!r:.80}: {described(error)}"
            )
            raise PluginError(msg) from error
    return attrs.evolve(
        config,
        plugins=plugins,
        run=attrs.evolve(config.run, dir=None),
        train=attrs.evolve(config.train, device=device, epochs=None),
    )


@contextmanager
def _explained(mode: Unknown) -> Iterator[None]:
    """Say what was assumed if the code fails: an assumption may be the cause."""
    try:
        yield
    except NeaptideError:
        raise
    except Exception as error:
        *_, last = (None, *mode.assumptions)
        if last is None:
            raise
        msg = (
            f"the run fails without values: {described(error)}; a plan assumed what may be wrong: "
            f"{last}"
        )
        raise UnplannableError(msg) from error


def _name(log: AllocationLog, trainer: HybridTrainer) -> None:
    parameters = [*map(_own, trainer.model.parameters())]
    log.name(nested_tensors(trainer.optimizer.state_dict()), "optimizer state")
    found = (one.grad for one in trainer.model.parameters() if one.grad is not None)
    log.name(map(_own, found), "gradients")
    log.name(trainer.model.buffers(), "buffers")
    log.name(parameters, "weights")


def _own(tensor: Any) -> torch.Tensor:
    """Return the part of a tensor that this process has."""
    part: torch.Tensor = tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _listener(log: AllocationLog, trainer: HybridTrainer, mode: Unknown) -> Any:
    @contextmanager
    def opened(name: str, category: str) -> Iterator[None]:
        before = log.during, log.kind
        mode.assumptions.restart()
        if category == "step":
            log.during = name.rsplit(maxsplit=1)[-1]
        elif category == "core" and name in _MOMENTS:
            phase = log.during.split()[0]
            log.kind = _MOMENTS[name]
            log.during = phase if phase == "evaluate" else f"{phase} {log.kind}"
        try:
            yield
        finally:
            if name == "around_backward":
                _name(log, trainer)
            log.during, log.kind = before

    return opened
