"""Measure one configuration in this process."""

from __future__ import annotations

import statistics
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from probes.checks import first_line

from neaptide_toolkit.machine.facts import memory
from neaptide_toolkit.machine.meter import high_water
from scaling.configurations import GIGA, Configuration
from scaling.decoder import batch_of
from scaling.needed_bytes import device as device_bytes
from scaling.needed_bytes import host, pieces, shortage
from scaling.rates import rates, roofline, wait
from scaling.subjects import MODULES, SUBJECTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaling.subjects import Made

WARM_UP = 2
"""Number of steps until the order of blocks is known and the allocator's memory is stable."""


def plan(configuration: Configuration, room: int | None = None) -> dict[str, Any]:
    """Return a row that has the configuration's computed bytes, without a measurement."""
    cap = None if configuration.cap_gb is None else configuration.cap_gb * GIGA
    number = pieces(configuration, cap)
    return {
        "key": configuration.key,
        "case": configuration.case,
        "model": configuration.model,
        "parameters": configuration.shape.parameters,
        "subject": configuration.subject,
        "optimizer": configuration.optimizer,
        "master": configuration.master,
        "clip": configuration.clip,
        "cap_gb": configuration.cap_gb,
        "tokens": configuration.tokens,
        "sequence": configuration.sequence,
        "micro_batches": number,
        "computed_device_bytes": device_bytes(configuration, number),
        "computed_host_bytes": host(configuration),
        "outcome": "not measured",
        "reason": shortage(configuration, room),
    }


def refused(configuration: Configuration, device: torch.device) -> dict[str, Any] | None:
    """Return a row with the reason if the configuration cannot run here; None if it can run."""
    found = {**plan(configuration), "device": name_of(device)}
    missing = MODULES.get(configuration.subject)
    if missing is not None and find_spec(missing) is None:
        return {**found, "outcome": "missing", "reason": f"pip install {missing}"}
    if configuration.subject == "fsdp2" and device.type == "cuda" and not dist.is_nccl_available():
        return {**found, "outcome": "missing", "reason": "this torch has no NCCL"}
    reason = None if configuration.tiny else shortage(configuration, memory().room)
    return None if reason is None else {**found, "outcome": "does not fit", "reason": reason}


def measure(configuration: Configuration, device: torch.device) -> dict[str, Any]:
    """Return the row of one configuration. If the measurement fails, the row has the error."""
    found = {**plan(configuration), "device": name_of(device)}
    try:
        return {**found, **trained(configuration, device, found["micro_batches"])}
    except torch.OutOfMemoryError as error:
        return {**found, "outcome": "out of memory", "reason": first_line(error)}
    except Exception as error:  # noqa: BLE001 - the error is the finding
        return {**found, "outcome": "failed", "reason": first_line(error)}


def trained(configuration: Configuration, device: torch.device, number: int) -> dict[str, Any]:
    """Limit the memory, measure the machine's rates, then train."""
    if device.type == "cuda" and configuration.cap_gb is not None:
        whole = torch.cuda.get_device_properties(device).total_memory
        share = min(1.0, configuration.cap_gb * GIGA / whole)
        torch.cuda.set_per_process_memory_fraction(share, device)
    measured = rates(device, tiny=configuration.tiny)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    made = SUBJECTS[configuration.subject](configuration, device, number)
    batch = batch_of(configuration.shape, *configuration.batch, device, 0)
    for _ in range(WARM_UP):
        made.step(batch)
    wait(device)
    before = (0.0, 0.0) if made.moved is None else made.moved()
    steps = [timed_step(made, batch, device) for _ in range(configuration.steps)]
    seconds, of_device = zip(*steps, strict=True)
    return {
        "outcome": "smoke test" if configuration.tiny else "measured",
        "torch": str(torch.__version__),
        "seconds_a_step": seconds,
        "device_seconds_a_step": of_device,
        "tokens_per_s": batch[0].numel() / statistics.median(seconds),
        "rates": measured,
        **bounds(configuration, made, measured, before, seconds, batch[0].shape),
        **peaks(device),
        "settings": made.settings,
    }


def name_of(device: torch.device) -> str:
    """Return the device's name. A rerun uses the name to find rows of the same device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def timed_step(
    made: Made, batch: tuple[torch.Tensor, torch.Tensor], device: torch.device
) -> tuple[float, float | None]:
    """Return the seconds of a step, including all asynchronous work that the step starts.

    The first figure is of the host's clock, the second one of the device's. On a simulated device
    only the second one means something. It is None on a CPU.
    """
    events = (
        [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []
    )
    start = time.perf_counter()
    for event in events[:1]:
        event.record()
    made.step(batch)
    wait(device)
    for event in events[1:]:
        event.record()
    wait(device)
    taken = time.perf_counter() - start
    return taken, events[0].elapsed_time(events[1]) / 1e3 if events else None


def bounds(
    configuration: Configuration,
    made: Made,
    measured: dict[str, float],
    before: tuple[float, float],
    seconds: Sequence[float],
    shape: torch.Size,
) -> dict[str, Any]:
    """Return the shortest possible times of a step at the machine's measured rates.

    A lane is computation, or copies in one direction. `lanes_s` has the shortest possible time of
    each lane, in seconds.
    `share_of_roofline` is the largest of these times divided by the measured time.
    """
    if configuration.subject not in ("streamed", "resident"):
        return {"lanes_s": None, "binding_lane": None, "share_of_roofline": None}
    h2d = d2h = 0.0
    if made.moved is not None:
        h2d, d2h = (
            (after - earlier) / len(seconds)
            for after, earlier in zip(made.moved(), before, strict=True)
        )
    operations = configuration.shape.operations(shape.numel(), shape[1])
    lanes, binding, least = roofline(measured, operations, h2d, d2h)
    return {
        "h2d_bytes_a_step": h2d,
        "d2h_bytes_a_step": d2h,
        "operations_a_step": operations,
        "lanes_s": lanes,
        "binding_lane": binding,
        "share_of_roofline": least / statistics.median(seconds),
    }


def peaks(device: torch.device) -> dict[str, int | None]:
    """Return the peak bytes: allocated on the device, reserved on the device, and used in RAM."""
    gpu = device.type == "cuda"
    return {
        "peak_device_bytes": torch.cuda.max_memory_allocated(device) if gpu else None,
        "reserved_device_bytes": torch.cuda.max_memory_reserved(device) if gpu else None,
        "peak_host_bytes": high_water(),
    }
