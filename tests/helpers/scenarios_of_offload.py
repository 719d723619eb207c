"""A short run of optimizer-offload's mechanism alone on the device `cuda`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from on_device import DEVICE, Result, digest_of
from streamed_net import Net
from torch.nn import functional

from neaptide_plugins.optimizer_offload.host_state import HostState
from neaptide_plugins.optimizer_offload.lanes import copying_lane
from neaptide_toolkit.offload.resident_store import ResidentStore


class _Failing:
    """A lane of which the first ticket cannot be waited for."""

    def __init__(self, lane: Any) -> None:
        self._lane, self._fails = lane, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)

    def submit(self, *given: Any) -> Any:
        """Submit the work; the first ticket fails."""
        ticket = self._lane.submit(*given)
        if given[0] == "optimizer state returns" and self._fails:
            self._fails = False
            return self
        return ticket

    def wait(self) -> None:
        """Fail."""
        raise RuntimeError


def state_leaves_and_returns(*, pin: bool) -> Result:
    """Evict optimizer state without a wait of the host; fail once; evict more than before."""
    torch.manual_seed(7)
    model = Net().to(DEVICE)
    small, large = model.blocks[1], model.blocks
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    store = ResidentStore(model, optimizer)
    refuge = HostState(DEVICE, pin=pin, lane=_Failing(copying_lane(DEVICE, pinned=pin)))
    losses = []
    batches = torch.randint(0, 11, (3, 4, 6)).to(DEVICE)
    for modules, tokens in zip((small, small, large), batches, strict=True):
        value = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        wanted = set(modules.parameters())
        spans = [span for span in store.spans() if store.parameters[span.name] in wanted]
        refuge.leave(store, spans)
        if modules is large:  # the host may read at once what has left
            averages = _averages(model, optimizer)
            digest_of({name: one for name, one in averages.items() if one.device.type == "cpu"})
        torch.zeros(4096, device=DEVICE)
        with suppress(RuntimeError):
            refuge.finish()
        torch.zeros(4096, device=DEVICE)
        refuge.finish()
        losses.append(value.detach())
    refuge.close()
    return [float(each) for each in losses], digest_of(_averages(model, optimizer))


def _averages(model: Net, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    named = [(name, optimizer.state[each]) for name, each in model.named_parameters()]
    return {name: held["exp_avg"] for name, held in named if held}
