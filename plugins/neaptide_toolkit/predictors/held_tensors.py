"""Tensors stored in float32, bfloat16 or int8, on the device or in RAM.

Arithmetic is in float32. It processes a tensor piece by piece.
"""

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
"""Number of elements that share one scale in int8."""
PLAIN = 1 << 16
"""Elements of a float32 weight to which torch adds with the same bits as the op, but sooner."""
PIECE = 1 << 20
"""Number of elements processed at a time. It limits the temporary float32 memory."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


@attrs.frozen(eq=False)
class WindowOps:
    """Operations on held tensors; each has the signature of an op of `neaptide_kernels`."""

    quantize: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    """Has the signature of `quantize_int8`."""
    dequantize: Callable[..., torch.Tensor]
    """Has the signature of `dequantize_int8`."""
    add: Callable[..., None]
    """Has the signature of `apply_delta`."""

    __repr__ = one_line

    def add_to(
        self, weight: torch.Tensor, delta: torch.Tensor, scale: float, seed: int | None
    ) -> None:
        """Add `scale * delta` to a weight; rounding is stochastic unless `seed` is None."""
        factor = torch.tensor(scale, device=weight.device)
        small = weight.is_cpu and weight.numel() <= PLAIN
        if small and weight.dtype == delta.dtype == torch.float32:
            weight.add_(delta * factor)
        else:
            self.add([weight], [delta], factor, seed is not None, seed or 0)


@attrs.frozen(eq=False)
class Storage:
    """The device of held tensors, and the operations on them."""

    ops: WindowOps
    device: torch.device
    """The device that holds the tensors."""
    locked_for: torch.device | None = None
    """If set, memory is page-locked for copies to this device, and the arithmetic runs on this
    device."""
    pageable: Callable[[str], None] | None = None
    """Called if memory cannot be page-locked; the argument is the reason, in one line."""

    def zeros(self, shape: tuple[int, ...], state: State) -> HeldTensor:
        """Return a held tensor of zeros of `shape`."""
        return self._empty(shape, DTYPES[state]).clear()

    def load(self, saved: Mapping[str, Any]) -> HeldTensor:
        """Return a held tensor from its `state_dict`, in the saved format."""
        held = self._empty(tuple(saved["values"].shape), saved["values"].dtype)
        held.values.copy_(saved["values"])
        if held.scales is not None:
            held.scales.copy_(saved["scales"])
        return held

    def works_on(self, weight: torch.Tensor) -> torch.device:
        """Return the device for arithmetic with `weight`."""
        locked = self.locked_for
        return self.device if locked is None or locked.type != weight.device.type else weight.device

    @property
    def proposes_on(self) -> torch.device:
        """The device for computing proposals."""
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
    """One stored tensor. Offsets are in flattened order; every `start` is a multiple of `GROUP`."""

    storage: Storage
    values: torch.Tensor
    """The values or, in int8, the quantized values; contiguous."""
    scales: torch.Tensor | None
    """float32 `[groups]` for int8, else None."""

    def read(self, start: int, stop: int, on: torch.device) -> torch.Tensor:
        """Return elements as float32 `[stop - start]` on the device `on`; a view if possible."""
        part = self.values.view(-1)[start:stop].to(on)
        if self.scales is None:
            return part.float()
        scales = self.scales[start // GROUP : -(-stop // GROUP)].to(on)
        return self.storage.ops.dequantize(part, scales, None, GROUP, torch.float32)

    def write(self, start: int, values: torch.Tensor, seed: int | None) -> None:
        """Store float32 `[n]` at offset `start`; rounding is stochastic unless `seed` is None."""
        stop = start + len(values)
        place = self.values.view(-1)[start:stop]
        if self.scales is not None:
            dithered = values if seed is None else _dithered(values, seed)
            codes, scales, _ = self.storage.ops.quantize(dithered, GROUP)
            self.scales[start // GROUP : -(-stop // GROUP)].copy_(scales)
            place.copy_(codes)
        elif place.dtype == torch.bfloat16 and seed is not None:
            place.copy_(cut(values, _noise(values, seed)))
        else:
            place.copy_(values)

    def add(self, start: int, values: torch.Tensor, share: float, seed: int) -> None:
        """Add `share * values`, float32 `[n]`, to the `n` elements at offset `start`."""
        total = self.read(start, start + len(values), values.device)
        total.add_(values, alpha=share)
        if total.data_ptr() != self.values.view(-1)[start:].data_ptr():
            self.write(start, total, seed)

    def whole(self, on: torch.device) -> torch.Tensor:
        """Return the whole tensor in float32 on the device `on`; a view if possible."""
        return self.read(0, self.values.numel(), on).view(self.values.shape)

    def clear(self) -> HeldTensor:
        """Set all elements to zero and return this tensor."""
        for tensor in self.tensors():
            tensor.zero_()
        return self

    def fits(self, shape: tuple[int, ...], state: State) -> bool:
        """Return whether this tensor has the given shape and format."""
        return tuple(self.values.shape) == shape and self.values.dtype == DTYPES[state]

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that hold the values."""
        return [self.values] if self.scales is None else [self.values, self.scales]

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors for a checkpoint."""
        return {"values": self.values, "scales": self.scales}


def storage_for(
    place: WindowTier, device: torch.device, ops: WindowOps, pageable: Callable[[str], None]
) -> Storage:
    """Return the storage of the setting `place` in a run that computes on `device`."""
    if place == "device":
        return Storage(ops, device)
    return Storage(ops, torch.device("cpu"), device if place == "pinned" else None, pageable)


def held_bytes(shape: tuple[int, ...], state: State) -> int:
    """Return the bytes of a held tensor of this shape and format."""
    elements = torch.Size(shape).numel()
    scales = 4 * -(-elements // GROUP) if state == "int8" else 0
    return elements * DTYPES[state].itemsize + scales


def pieces(elements: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each piece. If the last group is shorter, it is a separate piece.

    So all other pieces consist of whole groups. Operations on whole groups are faster.
    """
    whole = elements - elements % GROUP
    for start in range(0, whole, PIECE):
        yield start, min(start + PIECE, whole)
    if whole < elements:
        yield whole, elements


def seed_of(*what: object) -> int:
    """Return a seed for one rounding: a hash of the arguments, so it is equal in a resumed run.

    The seed has 32 bits, the limit of torch's CPU generator.
    """
    return zlib.crc32("/".join(map(str, what)).encode())


def draw(words: torch.Tensor, seed: int, generator: torch.Generator) -> None:
    """Fill int64 `words` with random bits of `seed`; four numbers of int16 each."""
    # A generator draws 64 bits almost as fast as 16 bits, and much faster than `counter_random`.
    words.random_(-(2**63), None, generator=generator.manual_seed(seed))


def _noise(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Return random int16 `[n]`, uniform over all int16 values; `like` sets n and the device."""
    words = torch.empty(-(-len(like) // 4), dtype=torch.int64, device=like.device)
    draw(words, seed, torch.Generator(like.device))
    return words.view(torch.int16)[: len(like)]


def cut(values: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Round `values` up or down at random to numbers of bfloat16; return them as float32 `[n]`."""
    bits = values.contiguous().view(torch.int32) + (noise.int() & 0xFFFF)
    return (bits & -0x10000).view(torch.float32)


def _dithered(values: torch.Tensor, seed: int) -> torch.Tensor:
    """Return `values` plus noise of up to half an int8 step, so that rounding is stochastic.

    The largest magnitude of a group determines the step. int8 represents this magnitude exactly,
    so elements of this magnitude get no noise.
    """
    missing = -len(values) % GROUP
    rows = torch.nn.functional.pad(values, (0, missing)) if missing else values
    rows = rows.view(-1, GROUP)
    noise = _noise(rows.view(-1), seed).float().view(rows.shape)
    largest = rows.abs().amax(1, keepdim=True)
    moved = torch.addcmul(rows, noise, largest * (2.0**-16 / 127))
    moved = torch.where(rows.abs() == largest, rows, moved.clamp_(-largest, largest))
    return moved.view(-1)[: len(values)]
