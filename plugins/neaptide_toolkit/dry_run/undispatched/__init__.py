"""Memory that PyTorch takes without its dispatcher: inside kernels of a CPU, and for generators.

The numbers were found by trying: they are those of oneDNN in PyTorch 2.13, on a processor with
AVX-512 and AMX.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from .encoder_layers import encoder_layers_in_parts
from .generators import states_noted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def all_dispatched(made: Callable[..., None]) -> Iterator[None]:
    """Within this context a dry run hears of all memory and shapes that it can.

    Args:
        made: called with the memory of each state of a generator (`states_noted`).
    """
    with states_noted(made), encoder_layers_in_parts():
        yield
