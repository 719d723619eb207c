"""Short runs of streaming alone on the device `cuda`, each for some of its waits."""

from __future__ import annotations

import gc
import mmap
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import disks
import torch
from on_device import DEVICE, Result, digest_of
from streamed_net import WAYS, Net, trained_net
from torch.nn import functional

from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming
from neaptide_plugins.layer_streaming.tiers.homes import DiskTier, Homes
from neaptide_toolkit.offload.disk import TierFile, Transfers
from neaptide_toolkit.recompute import find_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def streamed(way: str, *, poison: bool = False, **given: Any) -> Result:
    """Train the net by the mechanism alone; write the weights on the host at once."""
    settings = StreamingSettings(poison=poison, **WAYS[way])
    losses, weights, streaming = trained_net(settings, device="cuda", foreach=False, **given)
    assert streaming is not None
    for block in streaming.blocks:
        block.host.add_(0)
    return losses, digest_of(weights)


class LastOnly(Net):
    """The net, of which only the last block is called."""

    def forward(self, tokens: torch.Tensor, skip: int | None = None) -> torch.Tensor:
        """Return logits."""
        del skip
        return self.head(self.blocks[-1](self.embed(tokens))["x"])


def stream_of(
    model: nn.Module, homes: Homes | None = None, **settings: Any
) -> tuple[Streaming, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """Return a streamed model, its optimizer, and a function that computes the next loss."""
    optimizer = torch.optim.AdamW(
        [each for each in model.parameters() if each.requires_grad], lr=1e-2, foreach=False
    )
    streaming = Streaming(
        model, find_blocks(model), optimizer, DEVICE, StreamingSettings(**settings), homes=homes
    )

    batches = iter(torch.randint(0, 11, (20, 4, 6)).to(DEVICE))  # no later copy of them waits

    def loss() -> torch.Tensor:
        tokens = next(batches)
        return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return streaming, optimizer, loss


def update(streaming: Streaming, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Make one update, without a wait of the host; return the loss on the device."""
    value = loss()
    value.backward()
    streaming.gradients.flush()
    streaming.step()
    streaming.gradients.drop()
    return value.detach()


def ended(streaming: Streaming, model: nn.Module, losses: list[torch.Tensor]) -> Result:
    """Close, and return losses and weights."""
    streaming.close()
    weights = {name: each.detach().cpu() for name, each in model.named_parameters()}
    return [float(each) for each in losses], digest_of(weights)


def one_block_trains() -> Result:
    """Update the last block only, so that slots hold old tickets; read and load state at once."""
    torch.manual_seed(2)
    model = LastOnly()
    streaming, optimizer, loss = stream_of(model, on_device=True, optimizer_slots=3)
    losses = [update(streaming, loss) for _ in range(3)]
    state = optimizer.state_dict()
    digest_of({str(key): each["exp_avg"].clone() for key, each in state["state"].items()})
    losses.append(update(streaming, loss))
    digest_of({name: each.clone() for name, each in model.state_dict().items()})
    assert streaming.updates is not None
    for prefetched in (False, True):
        losses.append(update(streaming, loss))
        streaming.updates.adopt()
        if prefetched:
            streaming.updates.prefetch(streaming.blocks[-1])
            streaming.updates.adopt()
        for held in optimizer.state.values():
            held["exp_avg"].mul_(0.5)
    losses.append(update(streaming, loss))
    return ended(streaming, model, losses)


def updated_in_place() -> Result:
    """Update a block that stays in its slots, while its last copy to the host may still run."""
    torch.manual_seed(9)
    model = LastOnly()
    streaming, _, loss = stream_of(model, on_device=True, in_backward=True)
    losses = [update(streaming, loss) for _ in range(4)]
    return ended(streaming, model, losses)


def from_disk(ram: int) -> Result:
    """Stream from a file and, for the first `ram` bytes, from RAM; read and load state at once."""
    torch.manual_seed(4)
    model = LastOnly()
    transfers = Transfers(DEVICE, piece=mmap.PAGESIZE)
    with TemporaryDirectory(dir=disks.folder()) as folder:
        tier = DiskTier((TierFile(Path(folder), transfers),), ram)
    homes = Homes(DEVICE, pin=True, disk=tier)
    streaming, optimizer, loss = stream_of(model, homes, on_device=True, in_backward=True)
    losses = [update(streaming, loss) for _ in range(3)]
    streaming.forget_copies()
    for held in optimizer.state.values():
        held["exp_avg"].mul_(0.5)
    losses += [update(streaming, loss) for _ in range(2)]
    return ended(streaming, model, losses)


class Parts(Net):
    """The net, of which a call uses the blocks in `used`."""

    used: tuple[int, ...] = ()

    def forward(self, tokens: torch.Tensor, skip: int | None = None) -> torch.Tensor:
        """Return logits."""
        del skip
        x = self.embed(tokens)
        for index in self.used:
            x = self.blocks[index](x)["x"]
        return self.head(x)


def an_update_that_was_not_foreseen() -> Result:
    """Update on the host where the last time another forward followed."""
    torch.manual_seed(8)
    model = Parts()
    streaming, _, loss = stream_of(model)
    losses = []
    first, second = (0, 1), (2, 4)
    for parts in 2 * ([first, second], [second, first]):
        for model.used in parts[:-1]:
            value = loss()
            value.backward()
            streaming.gradients.flush()
            losses.append(value.detach())
        model.used = parts[-1]
        losses.append(update(streaming, loss))
    return ended(streaming, model, losses)


def kept_and_let_go() -> Result:
    """Keep all blocks on the device and let them go, in use and unused."""
    torch.manual_seed(3)
    model = Net()
    streaming, _, loss = stream_of(model, on_device=True)
    losses = []
    for _ in range(3):
        losses.append(update(streaming, loss))
        streaming.stay(whole=True)
        losses.append(update(streaming, loss))
        streaming.stay(whole=False)
        streaming.stay(whole=True)
        streaming.stay(whole=False)
        torch.zeros(4096, device=DEVICE)
    return ended(streaming, model, losses)


def changed_while_kept() -> Result:
    """The host writes weights of blocks that stay on the device and are in use."""
    torch.manual_seed(4)
    model = Net()
    streaming, _, loss = stream_of(model, resident=5)
    losses = []
    for _ in range(3):
        with torch.no_grad():
            losses.append(loss())
            for block in streaming.blocks:
                block.settle()
                block.host.view(torch.float32).mul_(0.9)
                streaming.residency.changed(block)
            losses.append(loss())
    return ended(streaming, model, losses)


def used_between_steps() -> Result:
    """The user writes weights on the host at once, after a step and after a loss of their own."""
    torch.manual_seed(10)
    model = Net()
    streaming, _, loss = stream_of(model, on_device=True)
    losses = [update(streaming, loss) for _ in range(2)]  # the second one fetches ahead
    streaming.forget_copies()
    for block in streaming.blocks:
        block.host.view(torch.float32).mul_(1.0)
    streaming.residency.fresh = lambda: True
    with torch.no_grad():
        for _ in range(2):
            losses.append(loss())
            for block in streaming.blocks:
                block.host.view(torch.float32).mul_(0.9)
    return ended(streaming, model, losses)


def followed_by_a_hook() -> Result:
    """A hook on the optimizer's step writes gradients and weights on the host."""
    torch.manual_seed(11)
    model = Net()
    streaming, optimizer, loss = stream_of(model, on_device=True)

    def follow(*_: Any) -> None:
        with torch.no_grad():
            for block in streaming.blocks:
                for parameter in block.parameters:
                    parameter.mul_(0.9)
                    if parameter.grad is not None:
                        parameter.grad.mul_(0.5)

    optimizer.register_step_post_hook(follow)
    return ended(streaming, model, [update(streaming, loss) for _ in range(3)])


def broken_off(resident: int) -> Result:
    """Backwards that fail midway, with inputs and gradients on their way; then train on."""
    torch.manual_seed(5)
    model = Net()
    streaming, _, loss = stream_of(model, on_device=True, inputs_on_host=True, resident=resident)
    failing: set[int] = set()

    def fail(index: int, gradient: torch.Tensor) -> torch.Tensor:
        if index in failing:
            raise RuntimeError
        return gradient

    for index, module in enumerate(model.blocks):
        module.register_forward_hook(
            lambda _, __, returned, index=index: (
                returned["x"].register_hook(partial(fail, index)) and None
            )
        )
    losses = [update(streaming, loss)]
    for index in (3, 2, 1):
        failing.add(index)
        with suppress(RuntimeError):
            loss().backward()
        failing.clear()
        streaming.gradients.drop()
        for block in streaming.blocks:
            for parameter in block.parameters:
                if parameter.requires_grad:
                    streaming.gradients.host.create(block, parameter)
        streaming.gradients.drop()
        gc.collect()
        torch.zeros(4096, device=DEVICE)
        losses.append(update(streaming, loss))
    return ended(streaming, model, losses)


def leave_memory(nbytes: int) -> None:
    """Compute in new memory of so many bytes, several times, and free it."""
    kept = [torch.ones(nbytes, dtype=torch.uint8, device=DEVICE).add_(1) for _ in range(16)]
    del kept


def unfrozen() -> Result:
    """Train more parameters while gradients are accumulated, so that buffers grow."""
    torch.manual_seed(6)
    model = Net()
    for block in model.blocks:
        block.up.weight.requires_grad_(False)
    weight = model.blocks[0].up.weight  # with it the first block's gradients are the largest
    streaming, _, loss = stream_of(model, on_device=True)
    losses = []
    for _ in range(2):
        first = loss()
        first.backward()
        streaming.gradients.flush()
        weight.requires_grad_(True)
        second = loss()
        # A buffer that grows in the backward or the step gets memory that was used just before.
        hook = model.blocks[0].down.register_forward_hook(lambda *_: leave_memory(5376))
        second.backward()
        hook.remove()
        streaming.gradients.flush()
        leave_memory(max(each.nbytes for each in streaming.gradients.host.stored()))
        streaming.step()
        streaming.gradients.drop()
        losses += [first.detach(), second.detach()]
    return ended(streaming, model, losses)
