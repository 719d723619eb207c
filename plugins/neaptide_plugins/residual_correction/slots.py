"""Places for compressed residuals: in RAM, or in files that are read and written in parts.

A residual has one part for each span (parameter). A part is int8 values, of which each group of 256
in flattened order has one float32 scale. The error of an element is at most half its group's scale,
which is the group's largest magnitude / 127.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.errors import RunDirectoryError
from neaptide_kernels.int8 import dequantize_int8, quantize_int8

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neaptide import Span
    from neaptide.io.folder import Folder

GROUP = 256
"""Elements with a common scale."""


@attrs.frozen
class ResidualPart:
    """Where the part of a span begins in a residual, in bytes, and how long it is."""

    start: int
    elements: int
    shape: tuple[int, ...]

    @property
    def groups(self) -> int:
        """Number of scales."""
        return -(-self.elements // GROUP)

    @property
    def bytes(self) -> int:
        """Bytes of the scales and values; whole scales, so that the next part is aligned."""
        return 4 * self.groups + -(-self.elements // 4) * 4


def layout(spans: Sequence[Span]) -> tuple[dict[str, ResidualPart], int]:
    """Return the part of each span by name, and the bytes of a residual."""
    parts, start = {}, 0
    for span in spans:
        part = ResidualPart(start, torch.Size(span.shape).numel(), tuple(span.shape))
        parts[span.name] = part
        start += part.bytes
    return parts, start


class Slots(ABC):
    """Numbered places for residuals of one layout."""

    def __init__(self, parts: Mapping[str, ResidualPart], size: int) -> None:
        self.parts, self.size = parts, size

    def write(self, slot: int, name: str, residual: torch.Tensor) -> None:
        """Compress and store the part of one span: a float32 tensor on the host."""
        part = self.parts[name]
        packed = torch.zeros(part.bytes, dtype=torch.uint8, device="cpu")
        if part.elements:
            codes, scales, _ = quantize_int8(residual.reshape(-1), GROUP)
            packed[: 4 * part.groups] = scales.view(torch.uint8)
            packed[4 * part.groups :][: part.elements] = codes.view(torch.uint8)
        self.put(slot, part.start, packed)

    def read(self, slot: int, name: str) -> torch.Tensor:
        """Return the part of one span in float32, of the span's shape, on the host."""
        part = self.parts[name]
        packed = self.get(slot, part.start, part.bytes)
        if not part.elements:
            return torch.zeros(part.shape, dtype=torch.float32, device="cpu")
        scales = packed[: 4 * part.groups].view(torch.float32)
        codes = packed[4 * part.groups :][: part.elements].view(torch.int8)
        whole: torch.Tensor = dequantize_int8(codes, scales, None, GROUP, torch.float32)
        return whole.view(part.shape)

    @abstractmethod
    def put(self, slot: int, start: int, packed: torch.Tensor) -> None:
        """Store bytes, uint8 `[n]`, at the offset `start` of a slot."""

    @abstractmethod
    def get(self, slot: int, start: int, size: int) -> torch.Tensor:
        """Return `size` bytes from the offset `start` of a slot."""

    def close(self) -> None:  # noqa: B027 - only files are closed
        """Give back what is open."""


class HostSlots(Slots):
    """Slots in RAM, allocated at once."""

    def __init__(self, parts: Mapping[str, ResidualPart], size: int, count: int) -> None:
        super().__init__(parts, size)
        self.held = torch.zeros(count, size, dtype=torch.uint8, device="cpu")

    def put(self, slot: int, start: int, packed: torch.Tensor) -> None:
        """Copy the bytes."""
        self.held[slot, start : start + len(packed)] = packed

    def get(self, slot: int, start: int, size: int) -> torch.Tensor:
        """Return a view."""
        return self.held[slot, start : start + size]


class DiskSlots(Slots):
    """Slots in one file of the run directory; a part at a time is in RAM."""

    def __init__(self, parts: Mapping[str, ResidualPart], size: int, folder: Folder) -> None:
        super().__init__(parts, size)
        self._path = folder.path / "residuals"
        self._file = folder.open("residuals", os.O_RDWR | os.O_CREAT)

    def put(self, slot: int, start: int, packed: torch.Tensor) -> None:
        """Write the bytes into the file; RunDirectoryError if there is no room."""
        content = memoryview(packed.numpy().tobytes())
        try:
            os.lseek(self._file, slot * self.size + start, os.SEEK_SET)
            while content:
                content = content[os.write(self._file, content) :]
        except OSError as error:
            msg = (
                f"cannot write {self._path}: {error.strerror}; make room, or set "
                f'plugins.residual-correction.tier to "host"'
            )
            raise RunDirectoryError(msg) from error

    def get(self, slot: int, start: int, size: int) -> torch.Tensor:
        """Read the bytes from the file; RunDirectoryError if they are not there."""
        os.lseek(self._file, slot * self.size + start, os.SEEK_SET)
        content = bytearray()
        while len(content) < size:
            more = os.read(self._file, size - len(content))
            if not more:
                msg = f"{self._path} is shorter than it was written; another process cut it"
                raise RunDirectoryError(msg)
            content += more
        if not size:
            return torch.zeros(0, dtype=torch.uint8, device="cpu")
        return torch.frombuffer(content, dtype=torch.uint8)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
