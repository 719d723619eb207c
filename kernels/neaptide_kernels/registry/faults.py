"""What is raised and what is warned of where kernels fail."""

from __future__ import annotations

from neaptide.errors import NeaptideError


class KernelError(NeaptideError):
    """A kernel that was asked for cannot run, or one failed after it may have written."""

    exit_code = 2


class KernelWarning(RuntimeWarning):
    """Something of the kernels is not used, and what takes its place is right but slower."""
