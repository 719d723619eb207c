"""A tensor held in float32, bfloat16 or int8 on a tier, worked on in float32 piece by piece."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.text import one_line
from neaptide_toolkit.offload import Slab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .settings import State, WindowTier

GROUP = 256
"""Elements that share a scale in int8."""
PIECE = 1 << 20
"""Elements worked on at a time: what is float32 for a moment is no more than these."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


@attrs.frozen(eq=False)
class WindowOps:
    """Arithmetic from outside, with the signatures of `neaptide_kernels`."""

    quantize: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    """`quantize_int8`."""
    dequantize: Callable[..., torch.Tensor]
    """`dequantize_int8`."""
    add: Callable[..., None]
    """`apply_delta`."""

    __repr__ = one_line


@attrs.frozen(eq=False)
class Storage:
    """Where tensors are held, and by whose arithmetic."""

    ops: WindowOps
    device: torch.device
    """Where they lie."""
    locked_for: torch.device | None = None
    """Page-locked for copies to this device, on which they are worked on."""
    pageable: Callable[[str], None] | None = None
    """Told why memory could not be page-locked, in a line."""

    def zeros(self, shape: tuple[int, ...], state: State) -> HeldTensor:
        """Hold zeros of `shape`."""
        return self._empty(shape, DTYPES[state]).clear()

    def load(self, saved: Mapping[str, Any]) -> HeldTensor:
        """Hold what `HeldTensor.state_dict` returned, in the format it has."""
        held = self._empty(tuple(saved["values"].shape), saved["values"].dtype)
        held.values.copy_(saved["values"])
        if held.scales is not None:
            held.scales.copy_(saved["scales"])
        return held

    def works_on(self, weight: torch.Tensor) -> torch.device:
        """Return the device to do the arithmetic on that `weight` enters."""
        locked = self.locked_for
        return self.device if locked is None or locked.type != weight.device.type else weight.device

    @property
    def proposes_on(self) -> torch.device:
        """The device to make proposals on."""
        return self.locked_for or self.device

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> HeldTensor:
        values = self._allocated(shape, dtype)
        if dtype != torch.int8:
            return HeldTensor(self, values, None)
        groups = -(-values.numel() // GROUP)
        return HeldTensor(self, values, self._allocated((groups,), torch.float32))

    def _allocated(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.locked_for is None:
            return torch.empty(shape, dtype=dtype, device=self.device)
        size = torch.Size(shape).numel() * dtype.itemsize
        slab = Slab.on_host_of(self.locked_for, size)
        if slab.reason is not None and self.pageable is not None:
            self.pageable(slab.reason)
        return slab.flat.view(dtype).view(shape)


@attrs.frozen(eq=False)
class HeldTensor:
    """One tensor. Indices count elements in the order of `flatten()`, from multiples of `GROUP`."""

    storage: Storage
    values: torch.Tensor
    """Codes where int8; contiguous."""
    scales: torch.Tensor | None
    """float32 `[groups]` where int8."""

    def read(self, start: int, stop: int, on: torch.device) -> torch.Tensor:
        """Return elements as float32 `[stop - start]` on `on`; its own memory where it is that."""
        part = self.values.view(-1)[start:stop].to(on)
        if self.scales is None:
            return part.float()
        scales = self.scales[start // GROUP : -(-stop // GROUP)].to(on)
        return self.storage.ops.dequantize(part, scales, None, GROUP, torch.float32)

    def write(self, start: int, values: torch.Tensor, seed: int | None) -> None:
        """Hold float32 `[n]` from `start` on, rounded stochastically unless `seed` is None."""
        stop = start + len(values)
        place = self.values.view(-1)[start:stop]
        if self.scales is not None:
            dithered = values if seed is None else _dithered(values, seed)
            codes, scales, _ = self.storage.ops.quantize(dithered, GROUP)
            self.scales[start // GROUP : -(-stop // GROUP)].copy_(scales)
            place.copy_(codes)
        elif place.dtype == torch.bfloat16 and seed is not None:
            place.copy_(_cut(values, seed))
        else:
            place.copy_(values)

    def add(self, start: int, values: torch.Tensor, share: float, seed: int) -> None:
        """Add `share * values`, float32 `[n]`, to the elements from `start` on."""
        total = self.read(start, start + len(values), values.device)
        total.add_(values, alpha=share)
        if total.data_ptr() != self.values.view(-1)[start:].data_ptr():
            self.write(start, total, seed)

    def whole(self, on: torch.device) -> torch.Tensor:
        """Return all of it in float32 on `on`; its own memory where it is that."""
        return self.read(0, self.values.numel(), on).view(self.values.shape)

    def clear(self) -> HeldTensor:
        """Hold zeros, and return itself."""
        for tensor in self.tensors():
            tensor.zero_()
        return self

    def fits(self, shape: tuple[int, ...], state: State) -> bool:
        """Return whether it is of this shape and format."""
        return tuple(self.values.shape) == shape and self.values.dtype == DTYPES[state]

    def tensors(self) -> list[torch.Tensor]:
        """Return what it is made of."""
        return [self.values] if self.scales is None else [self.values, self.scales]

    def state_dict(self) -> dict[str, Any]:
        """Return it for a checkpoint."""
        return {"values": self.values, "scales": self.scales}


def storage_for(
    place: WindowTier, device: torch.device, ops: WindowOps, pageable: Callable[[str], None]
) -> Storage:
    """Return where `place` is in a run that computes on `device`."""
    if place == "device":
        return Storage(ops, device)
    return Storage(ops, torch.device("cpu"), device if place == "pinned" else None, pageable)


def held_bytes(shape: tuple[int, ...], state: State) -> int:
    """Return the bytes of a held tensor."""
    elements = torch.Size(shape).numel()
    scales = 4 * -(-elements // GROUP) if state == "int8" else 0
    return elements * DTYPES[state].itemsize + scales


def pieces(elements: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the pieces to work on; a last group that is shorter is one by itself.

    What takes whole groups only is faster.
    """
    whole = elements - elements % GROUP
    for start in range(0, whole, PIECE):
        yield start, min(start + PIECE, whole)
    if whole < elements:
        yield whole, elements


def seed_of(*what: object) -> int:
    """Return the seed of one rounding: the same in a resumed run, another for another thing.

    32 bits: torch's generator of a CPU takes no more.
    """
    return zlib.crc32("/".join(map(str, what)).encode())


def _noise(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Return int16 `[n]`, uniform over all values, on the device of `like`, `[n]`."""
    # Generators draw 64 bits in little more time than 16, and far less than by position.
    generator = torch.Generator(like.device).manual_seed(seed)
    words = torch.empty(-(-len(like) // 4), dtype=torch.int64, device=like.device)
    return words.random_(-(2**63), None, generator=generator).view(torch.int16)[: len(like)]


def _cut(values: torch.Tensor, seed: int) -> torch.Tensor:
    """Return float32 `[n]` that bfloat16 holds, up or down by chance."""
    bits = values.contiguous().view(torch.int32) + (_noise(values, seed).int() & 0xFFFF)
    return (bits & -0x10000).view(torch.float32)


def _dithered(values: torch.Tensor, seed: int) -> torch.Tensor:
    """Return `values` and up to half a digit of int8, so that the nearest is one by chance.

    The largest magnitude of a group stays, and with it the digit: rounded, it is itself anyway.
    """
    missing = -len(values) % GROUP
    rows = torch.nn.functional.pad(values, (0, missing)) if missing else values
    rows = rows.view(-1, GROUP)
    noise = _noise(rows.view(-1), seed).float().view(rows.shape)
    largest = rows.abs().amax(1, keepdim=True)
    moved = torch.addcmul(rows, noise, largest * (2.0**-16 / 127))
    moved = torch.where(rows.abs() == largest, rows, moved.clamp_(-largest, largest))
    return moved.view(-1)[: len(values)]
