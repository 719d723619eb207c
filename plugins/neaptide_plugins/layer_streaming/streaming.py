"""Builds and connects the parts of streaming for one model."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from neaptide_toolkit.machine.devices import end_backward
from neaptide_toolkit.offload import Lane, lane_for
from neaptide_toolkit.offload.disk.mapped_tensors import MappedTensors
from neaptide_toolkit.recompute import Buffers, Patch

from .calls.graph import Preserved
from .calls.inputs import Inputs
from .calls.recompute import Recomputed
from .checks import looks_across_samples
from .state_hook import CallsIfThere
from .tiers.homes import Homes
from .updates.backward_update import BackwardUpdate
from .updates.blockwise import Updates
from .updates.gradients import Gradients
from .updates.step_hooks import is_followed, once_for_all
from .weights.blocks import make_blocks, shared_parameters, tensors_outside
from .weights.loading import FromFiles, place_rest
from .weights.residency import Residency

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import torch
    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from neaptide_toolkit.offload import Listener

    from .settings import StreamingSettings
    from .weights.block import Block


class Streaming:
    """A model whose blocks stream from the host.

    Args:
        model: the parameters of its blocks are moved to the host, all other parameters to
            `device`.
        named: qualified name and module of each block.
        optimizer: the optimizer of the model's parameters.
        device: the device that computes.
        settings: how to stream.
        homes: allocates what stays on the host; by default pinned RAM.
        weights: path of safetensors files with the weights, see `Shards.open`; None if the model
            already has its weights.
        listener: called for each copy on a CPU, for a timeline.
        lanes: `lanes(device, name)` returns a lane (a queue of copies); by default `lane_for`.
    """

    def __init__(
        self,
        model: nn.Module,
        named: Sequence[tuple[str, nn.Module]],
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        settings: StreamingSettings,
        *,
        homes: Homes | None = None,
        weights: str | None = None,
        listener: Listener | None = None,
        lanes: Callable[[torch.device, str], Lane] | None = None,
    ) -> None:
        self.settings, self.optimizer, self._whole = settings, optimizer, False
        self.homes = homes or Homes(device, pin=True, disk=None)
        with MappedTensors() as mapped:
            fill = mapped.copy if weights is None else FromFiles(model, weights)
            self.blocks = make_blocks(model, named, self.homes.allocate, fill)
            mapped.own(tensors_outside(model, self.blocks))
        place_rest(model, self.blocks, device, fill)
        waits = bool(self.homes.files)
        largest = max((block.layout.bytes for block in self.blocks), default=0)
        make = lanes or partial(lane_for, listener=listener, waits=waits, largest=largest)
        self._lanes = [make(device, name) for name in ("to device", "to host")]
        self._outside = partial(tensors_outside, model, self.blocks)
        self._hooked: dict[nn.Parameter, RemovableHandle] = {}
        self._patches: list[Patch] = []
        self._newest: list[RemovableHandle] = []
        """Handles of hooks that make `state_dict` wait for the copies to the host."""
        with ExitStack() as stack:
            # After an error, end all copies before the memory that they read is freed.
            stack.callback(self._leave)
            self._set_up(device)
            stack.pop_all()
        self.residency.touched.listen()
        hook = CallsIfThere(self.settle)
        for module in (model, *(block.module for block in self.blocks)):
            self._newest.append(module.register_state_dict_pre_hook(hook))  # type: ignore[no-untyped-call]  # torch leaves it so
        self._newest.append(optimizer.register_state_dict_pre_hook(hook))

    def _set_up(self, device: torch.device) -> None:
        settings, homes, (inwards, outwards) = self.settings, self.homes, self._lanes
        self.residency = Residency(
            self.blocks,
            device,
            homes.on_device,
            slots=settings.max_active_layers,
            distance=settings.prefetch_distance,
            lane=inwards,
            poison=settings.poison,
            outside=self._outside,
        )
        self.resident: list[Block] = []
        """Blocks whose weights stay on the device, the last block first."""
        for block in self.blocks[::-1][: settings.resident]:
            self._stay_for_good(block)
        self.updates: Updates | None = None
        if settings.on_device:
            self.updates = Updates(
                self.optimizer,
                self.residency,
                inwards,
                outwards,
                homes,
                split=settings.split_master,
                slots=settings.optimizer_slots,
            )
        self.applying: BackwardUpdate | None = None
        if self.updates and settings.in_backward:
            self.applying = BackwardUpdate(
                self.updates,
                device,
                clip=settings.clip,
                max_norm=settings.max_norm,
                check_finite=settings.check_finite,
            )
            self.residency.coming = self.updates.prefetch_coming
        self.gradients = Gradients(self.blocks, device, outwards, homes.in_ram, self.applying)
        left = settings.inputs_on_host
        allocate = homes.allocate if settings.inputs_on_disk else homes.in_ram
        self.inputs = Inputs(device, inwards, outwards, allocate) if left else None
        self.units: list[Recomputed | Preserved] = []
        for block in self.blocks:
            patch = Patch(block.module)
            unit = self._unit(block, patch.forward)
            self.units.append(unit)
            patch.apply(unit)
            self._patches.append(patch)

    def _unit(self, block: Block, forward: Callable[..., Any]) -> Recomputed | Preserved:
        if self.settings.mode == "graph":
            return Preserved(block, forward, self.residency, self.gradients, self._hooked)
        return Recomputed(
            block,
            forward,
            self.residency,
            self.gradients,
            Buffers(block.module),
            self.settings.micro_batches,
            splittable=not any(map(looks_across_samples, block.module.modules())),
            shared=shared_parameters(block),
            inputs=self.inputs,
        )

    def step(self) -> None:
        """Update every parameter that has a gradient, streamed or not."""
        if self.updates is None:
            with self.residency.host_update():
                self.optimizer.step()
            return
        followed = is_followed(self.optimizer)
        with once_for_all(self.optimizer, partial(self._step_blocks, followed=followed)):
            self.optimizer.step()
        if followed:
            self.forget_copies()

    def forget_copies(self) -> None:
        """End all copies, and discard what they have copied to the device.

        From now on the host's tensors, which are the module's, have the only values.
        """
        self.residency.renew(self.blocks)
        if self.updates is not None:
            self.updates.forget()

    def _step_blocks(self, *, followed: bool) -> Callable[[], None]:
        """Update the blocks, and hide their gradients until the returned function is called."""
        if not self.settings.in_backward:
            self.gradients.host.begin_update()
            for block, following in zip(self.blocks, [*self.blocks[1:], None], strict=True):
                self._step(block, following)
        streamed = [parameter for block in self.blocks for parameter in block.parameters]
        held = [parameter.grad for parameter in streamed]
        for parameter in streamed:
            parameter.grad = None

        def back() -> None:
            for parameter, gradient in zip(streamed, held, strict=True):
                parameter.grad = gradient
            self.gradients.host.settle()
            if followed:
                self.residency.end_copies()

        return back

    def _step(self, block: Block, following: Block | None) -> None:
        updates, host = self.updates, self.gradients.host
        assert updates is not None, "called for updates on the device only"
        if not block.has_gradient:
            return
        updates.prefetch(block)
        host.prefetch(block)
        if following is not None and following.has_gradient:
            updates.prefetch_next(following)
            host.prefetch(following)
        with self.residency.use(block, "update"):
            updates.step(block, host.fetched(block))

    def stay(self, *, whole: bool) -> None:
        """Keep all blocks on the device if `whole`, else only the blocks in `resident`.

        A block with an evicted parameter is not kept: its slot would have the size of the whole
        block, so the eviction would free no memory.
        """
        self._whole = whole
        for block in self.blocks:
            if (whole or block in self.resident) and not block.evicted:
                self.residency.keep(block)
            else:
                self.residency.let_go(block)

    def evict(self, parameters: Collection[nn.Parameter]) -> Callable[[], None]:
        """Stop fetching `parameters` until the returned function is called."""
        affected = []
        for block in self.blocks:
            places = {
                place for place, parameter in enumerate(block.parameters) if parameter in parameters
            }
            if places:
                block.evicted |= places
                affected.append((block, places))
                self.residency.let_go(block)
                self.residency.changed(block)

        def back() -> None:
            for block, places in affected:
                block.evicted -= places
                self.residency.changed(block)
            affected.clear()
            self.stay(whole=self._whole)

        return back

    def keep_last(self, spare: int) -> int:
        """Keep more of the last blocks on the device, up to `spare` bytes; return how many."""
        before = len(self.resident)
        for block in self.blocks[::-1][before:]:
            spare -= block.layout.bytes
            if spare < 0:
                break
            self._stay_for_good(block)
        return len(self.resident) - before

    def _stay_for_good(self, block: Block) -> None:
        self.residency.keep(block)
        self.resident.append(block)

    def settle(self) -> None:
        """Wait until weights and state on the host are up to date."""
        if self.residency.fresh():
            self.residency.renew(self.blocks)
        if self.updates is not None:
            self.updates.forget()  # it waits for all copies; the host may change the state next

    def buffers(self) -> list[torch.Tensor]:
        """Return the slots, the staging buffers and the gradient buffers, on device and host."""
        host = self.gradients.host
        held = [*self.residency.buffers(), *host.buffers(), *host.stored()]
        return held if self.updates is None else [*held, *self.updates.buffers()]

    def close(self) -> None:
        """Stop streaming and remove all patches; the weights stay on the host."""
        with ExitStack() as stack:
            stack.callback(self._leave)
            stack.callback(self.residency.touched.close)
            if any(block.users for block in self.blocks):
                end_backward(self.residency.device)
            self.residency.close()

    def _leave(self) -> None:
        for patch in self._patches:
            patch.remove()
        for handle in (*self._hooked.values(), *self._newest):
            handle.remove()
        self._patches = []
        self._hooked.clear()
        self._newest = []
        with ExitStack() as stack:
            stack.callback(self.homes.close)
            for lane in self._lanes:
                stack.callback(lane.close)
