"""The error and the warning for kernels that fail."""

from __future__ import annotations

from neaptide.errors import NeaptideError


class KernelError(NeaptideError):
    """A requested kernel cannot run, or a kernel failed and may already have written results."""

    exit_code = 2


class KernelWarning(RuntimeWarning):
    """A kernel or its timings are not used; instead a correct but slower provider runs."""
