"""An estimate that differs from what is allocated breaks the law, wherever the bytes hide."""

from __future__ import annotations

from collections import UserDict
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE, stranger

from neaptide import Ledger, Phase, Plugin, hookimpl
from neaptide_toolkit.offload import Slab
from neaptide_toolkit.testing import ContractError, check_plugin
from neaptide_toolkit.testing.memory_counts import observed
from neaptide_toolkit.testing.subject import Subject
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide.api.memory import Moment, Tier

SIZE = 300_032  # CUDA rounds to multiples of 512
LAW = ["estimate-is-allocated"]


def tensor() -> torch.Tensor:
    """Return memory of torch's allocator for the device."""
    return torch.empty(SIZE, dtype=torch.uint8, device=DEVICE)


def on_host() -> torch.Tensor:
    """Return memory of torch's allocator for the host."""
    return torch.empty(SIZE, dtype=torch.uint8)


def slab() -> torch.Tensor:
    """Return memory outside it."""
    return Slab(SIZE).flat


class Holder(Plugin[Any]):
    """Holds memory where no walk over its attributes finds it, during the phases it names."""

    takes: tuple[Callable[[], torch.Tensor], ...] = ()
    states: tuple[Tier, ...] = ()
    during: tuple[str, ...] = ("warmup", "full", "predict", "correct")
    stated_during = during
    moments: tuple[Moment, ...] = ("forward", "backward", "update", "predict", "evaluate", "save")

    @hookimpl
    def around_forward(self) -> Callable[..., Any]:
        held: list[torch.Tensor] = []

        def forward(following: Callable[..., Any], *, phase: Phase, **arguments: Any) -> Any:
            held.clear()
            if phase.name in self.during:
                held.extend(take() for take in self.takes)
            return following(phase=phase, **arguments)

        return forward

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        for tier in self.states if phase.name in self.stated_during else ():
            ledger = ledger.add("stranger", "held", tier, SIZE, self.moments)
        return ledger


def check(**members: Any) -> None:
    check_plugin(stranger(type("Held", (Holder,), members), summary="Holds."), laws=LAW)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"takes": (tensor, slab), "states": ("host", "device")},
        {
            "takes": (tensor,),
            "states": ("device",),
            "during": ("predict", "full"),
            "stated_during": ("full", "predict"),
        },
    ],
    ids=["nothing", "on both tiers", "in two phases"],
)
def test_what_is_stated_as_it_is_passes(members: dict[str, Any]) -> None:
    check(**members)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"takes": (tensor,)}, r"states \+0 bytes .*, and \+(299|300)\d{3} are"),
        ({"states": ("device",)}, r"states \+300032 bytes .*, and [+-]\d{1,3} are"),
        ({"takes": (slab,), "states": ("device",)}, r"states \+300032 bytes on the device"),
        (
            {"takes": (slab, tensor), "states": ("host", "host")},
            r"states \+0 bytes on the device, and \+(299|300)\d{3} are",
        ),
        (
            {"takes": (tensor,), "states": ("device",), "moments": ("forward", "update")},
            r"at 'evaluate' it states \+0",
        ),
        ({"takes": (tensor,), "during": ("predict",)}, r"in predict at 'predict'"),
    ],
    ids=[
        "unstated tensor",
        "stated and not held",
        "slab said to be on the device",
        "tensor said to be on the host",
        "unstated at a moment",
        "unstated in Predict alone",
    ],
)
def test_what_is_stated_otherwise_breaks_the_law(members: dict[str, Any], reason: str) -> None:
    with pytest.raises(ContractError, match=reason):
        check(**members)


def test_slabs_of_a_plugin_beside_it_are_not_held_against_it() -> None:
    """Ordinary tensors on the host are what they are said to be, where it has no slabs itself."""
    own = type("Own", (Holder,), {"takes": (on_host,), "states": ("host",)})
    other = stranger(type("Other", (Holder,), {"takes": (slab,)}), "other")
    check_plugin(stranger(own, summary="Holds."), beside=[other], laws=LAW)


def test_what_is_held_at_one_of_a_phases_steps_counts() -> None:
    class Restoring(Plugin[Any]):
        _held: torch.Tensor | None = None

        @hookimpl
        def on_phase_enter(self) -> None:
            self._held = tensor()

        @hookimpl
        def after_step(self) -> None:
            self._held = None

    with pytest.raises(
        ContractError, match=r"'forward' it states \+0 .* \+(299|300)\d{3} are allocated"
    ):
        check_plugin(stranger(Restoring, summary="Is late to let go."), laws=LAW)


def test_a_mapping_that_cannot_be_iterated_over_is_no_error() -> None:
    """A plugin that holds a client of a server holds such a mapping: urllib3's pool."""

    class Pool(UserDict[str, Any]):
        def __iter__(self) -> Any:
            raise NotImplementedError

    class Client(Plugin[Any]):
        @hookimpl
        def on_run_start(self) -> None:
            self.pool = Pool()

    check_plugin(stranger(Client, summary="Holds."), laws=["estimate-is-measured"])


def test_a_cycle_that_waits_for_the_collector_counts_as_held() -> None:
    class Cyclic(Plugin[Any]):
        @hookimpl
        def before_forward(self) -> None:
            cycle: list[Any] = [tensor()]
            cycle.append(cycle)

    with pytest.raises(ContractError, match="are allocated"):
        check_plugin(stranger(Cyclic, summary="Leaves cycles."), laws=LAW)


def test_the_cores_own_ledger_is_what_is_allocated_at_every_moment() -> None:
    """Not as a difference: all that a run holds, but for its batches."""
    seen = observed(Subject(STEADY_PREDICTOR, {}, ()))
    batches = sum(
        value.nbytes for batch in tiny_task(width=128).batches for value in batch.values()
    )
    moments = {"forward", "update", "evaluate"}
    expected = {(phase, each) for phase in ("warmup", "full", "correct") for each in moments}
    assert expected | {("predict", "predict")} == set(seen.held)
    for key, held in seen.held.items():
        counted = held.cpu + held.cuda - batches
        assert sum(seen.stated(key)) == pytest.approx(counted, rel=0.05), key
