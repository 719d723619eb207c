"""The ledger's arithmetic, and the probes against what was really allocated."""

from __future__ import annotations

import pytest
import torch
from support import touched
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from neaptide.api.memory import MOMENTS, Ledger
from neaptide_toolkit.machine.meter import PeakMeter, sample
from neaptide_toolkit.tensors import nested_tensors, tensor_bytes, tier_of

CPU = torch.device("cpu")


def ledger() -> Ledger:
    """Return weights all the time, gradients in two moments, a rollback on the host."""
    return (
        Ledger()
        .add("core", "weights", "device", 100)
        .add("core", "gradients", "device", 50, ("backward", "update"))
        .add("offload", "rollback", "host", 30, ("predict",))
    )


def test_totals_are_by_tier_moment_owner_and_kind() -> None:
    assert 180 == ledger().total()
    assert 150 == ledger().total(tier="device")
    assert 100 == ledger().total(tier="device", moment="forward")
    assert 30 == ledger().total(owner="offload")
    assert 50 == ledger().total(kind="gradients")
    assert 0 == Ledger().total(tier="device")


def test_the_peak_is_the_worst_moment() -> None:
    assert ("backward", 150) == ledger().peak("device")
    assert ("predict", 30) == ledger().peak("host")
    assert (MOMENTS[0], 0) == Ledger().peak("host")


def test_a_printed_ledger_is_the_peaks_and_a_table_with_the_most_bytes_first() -> None:
    again = ledger().add("core", "weights", "device", 2 << 20)
    assert [
        "device  peak 2.0 MiB in backward",
        "host    peak 30 B in predict",
        "activations depend on the batch and are not in it",
        "",
        "tier    kind       owner      bytes  held in",
        "device  weights    core     2.0 MiB  all",
        "device  gradients  core        50 B  backward, update",
        "host    rollback   offload     30 B  predict",
    ] == str(again).split("\n")
    assert "Ledger(device 2.0 MiB, host 30 B)" == repr(again)


def test_a_printed_ledger_names_the_moments_something_is_missing_in() -> None:
    moved = (
        Ledger()
        .add("core", "activations", "device", 8)
        .move("activations", "device", "host", moments=("save",))
    )
    assert [
        "device  peak 8 B in forward",
        "host    peak 8 B in save",
        "",
        "tier    kind         owner  bytes  held in",
        "device  activations  core     8 B  all but save",
        "host    activations  core     8 B  save",
    ] == str(moved).split("\n")


def test_an_empty_ledger_can_be_printed() -> None:
    assert str(Ledger()).startswith("activations depend")
    assert "Ledger()" == repr(Ledger())


def test_moving_keeps_the_bytes_and_leaves_the_old_ledger_alone() -> None:
    before = ledger()
    after = before.move("weights", "device", "host")
    assert (100, 0) == (
        after.total(tier="host", kind="weights"),
        after.total(tier="device", kind="weights"),
    )
    assert before.total() == after.total()
    assert ledger() == before


def test_moving_takes_only_that_kind_from_that_tier() -> None:
    assert ledger() == ledger().move("weights", "host", "device").move("nothing", "device", "host")


def test_scaling_shrinks_one_kind() -> None:
    assert (25, 130) == (
        ledger().scale("weights", 0.25).total(kind="weights"),
        ledger().scale("gradients", 0.0).total(),
    )


def test_storages_are_counted_once() -> None:
    whole = torch.zeros(100)
    assert 400 == tensor_bytes([whole, whole[:10], whole.view(10, 10)])
    assert 800 == tensor_bytes([whole, torch.zeros(100)])


def test_tensors_without_memory_count_as_if_they_had_it() -> None:
    with FakeTensorMode():
        fake = torch.zeros(100)
    metas = [torch.zeros(100, device="meta") for _ in range(2)]
    assert 1200 == tensor_bytes([fake, fake[:10], *metas])


def test_of_a_sparse_tensor_and_of_a_wrapper_the_parts_are_counted() -> None:
    sparse = torch.eye(10).to_sparse()
    whole = torch.zeros(100)
    assert 10 * 2 * 8 + 10 * 4 == tensor_bytes([sparse])
    assert 800 == tensor_bytes([TwoTensor(whole, torch.zeros(100)), whole])
    assert 40 == tensor_bytes([torch._to_functional_tensor(torch.zeros(10))])


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    "layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
)
def test_of_a_compressed_sparse_tensor_the_parts_are_counted(layout: torch.layout) -> None:
    block = (2, 2) if layout in {torch.sparse_bsr, torch.sparse_bsc} else ()
    values = torch.ones(3, *block)
    ends, places = torch.tensor([0, 1, 2, 3]), torch.arange(3)
    compressed = torch.sparse_compressed_tensor(ends, places, values, layout=layout)
    assert 4 * 8 + 3 * 8 + values.nbytes == tensor_bytes([compressed])


def test_tensors_are_found_in_nested_trees() -> None:
    one, two, three = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    tree = {"a": [one, (two, "text", None)], "b": {"c": three, "d": 1.0}}
    assert [1, 2, 3] == [len(tensor) for tensor in nested_tensors(tree)]


def test_tiers_are_relative_to_where_the_run_computes() -> None:
    assert "device" == tier_of(CPU, CPU)
    assert "host" == tier_of(CPU, torch.device("cuda", 0))
    assert "device" == tier_of(torch.device("cuda", 1), torch.device("cuda", 0))


def test_a_sample_sees_the_process() -> None:
    found = sample(CPU)
    assert found.device_bytes is None
    assert found.host_bytes > 10_000_000


def test_the_meter_sees_a_spike_between_two_samples() -> None:
    meter = PeakMeter(CPU)
    if not meter.exact_host:
        pytest.skip("this system lets nobody reset the high-water mark")
    size = 64 * 1024 * 1024
    before = sample(CPU).host_bytes
    spike = touched(size // 4)  # a heap may have as much memory free that is counted already
    del spike
    assert meter.read().host_bytes - before > 0.9 * size
    meter.reset()
    assert meter.read().host_bytes - before < 0.5 * size
