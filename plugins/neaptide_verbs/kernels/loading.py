"""Load the ops and providers of all installed plugins, and find a device and a sample."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neaptide.errors import NeaptideError, suggest, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from neaptide_kernels.registry import Kernels, Sample

KINDS = ("cpu", "cuda", "xpu", "mps")


@contextmanager
def kernels_of_plugins() -> Iterator[tuple[Kernels, list[str]]]:
    """Yield the ops and providers of every installed plugin, and a list of notes.

    The notes state warnings, and plugins that could not be loaded. The list is complete when the
    context ends.
    """
    from neaptide.hooks.manager import HookManager  # noqa: PLC0415 - it imports torch
    from neaptide.hooks.registry import disabled_plugins, installed_plugins, load_class  # noqa: PLC0415 - as above
    from neaptide_kernels.registry import KERNELS, KernelScope, KernelWarning  # noqa: PLC0415 - as above

    notes: list[str] = []
    scope = KernelScope(KERNELS)
    try:
        blocked = disabled_plugins()
        for name, spec in installed_plugins().usable().items():
            if name in blocked:
                continue
            try:
                cls = load_class(spec)
                if hasattr(cls, "register_kernels"):
                    hooks = HookManager([(spec, cls(spec.config()))], object(), None)
                    hooks.notify("register_kernels", kernels=scope)
            except Exception as error:  # noqa: BLE001 - a third party's code may raise anything
                notes.append(f"plugin {name!r} was left out: {' '.join(text_of(error).split())}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", KernelWarning)
            yield KERNELS, notes
        notes.extend(str(each.message) for each in caught)
    finally:
        scope.close()


def device_named(name: str | None) -> torch.device:
    """Return the device of `--device`; by default the accelerator, or the CPU."""
    import torch  # noqa: PLC0415 - `neaptide --help` does not need it

    from neaptide.devices import api_of  # noqa: PLC0415 - as above

    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if name not in KINDS:
        msg = f"--device is {', '.join(KINDS[:-1])} or {KINDS[-1]} (got {name!r})"
        raise UsageError(msg)
    if not api_of(name).is_available():
        msg = f"this machine has no usable {name.upper()} device; use --device cpu"
        raise UsageError(msg)
    return torch.device(name)


class UsageError(NeaptideError):
    """An option or an argument is wrong."""

    exit_code = 2


def check_known(kernels: Kernels, op: str) -> None:
    """Raise UsageError for an unknown op."""
    if op not in kernels.ops:
        msg = f"there is no op {op!r}{suggest(op, kernels.ops)}; see neaptide kernels list"
        raise UsageError(msg)


def large_samples(kernels: Kernels, op: str, device: torch.device) -> Iterator[Sample]:
    """Return the large samples of an op."""
    return iter(kernels.ops[op].spec.large(device))


def sample_named(samples: Iterator[Sample], name: str | None) -> Sample:
    """Return the sample of a name, or the first without one; UsageError for an unknown name."""
    known = []
    for sample in samples:
        if name is None or sample.name == name:
            return sample
        known.append(sample.name)
    hint = suggest(name or "", known)
    msg = f"no sample is named {name!r}{hint}; the samples are {'; '.join(known)}"
    raise UsageError(msg)
