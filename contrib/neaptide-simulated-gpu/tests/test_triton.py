"""Triton kernels on the device: right results, one launch each, races and bad addresses told."""

from __future__ import annotations

import gc

import pytest
import simulated_gpu
import torch
from racing import raced
from simulated_gpu import detect_races

triton = pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")

import triton_kernels as kernels  # noqa: E402
from simulated_gpu.triton import (  # noqa: E402
    CannotInterpretError,
    declare_cost,
    launches,
    register_reference,
)
from simulated_gpu.triton.stores import stored  # noqa: E402
from triton_kernels import numbers  # noqa: E402

N = 1000


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernels.add[lambda meta: (triton.cdiv(N, meta["BLOCK"]),)](
        x, y, out, N, 0.1, BLOCK=128, num_warps=4
    )
    return out


def test_a_kernel_is_one_launch_on_the_current_stream() -> None:
    x, y = numbers(N), numbers(N)
    with simulated_gpu.timeline() as found:
        out = added(x, y)
    assert torch.equal(out.cpu(), x.cpu() + torch.tensor(0.1) * y.cpu())
    assert [(one[0], one[1], one[5]) for one in found if "add" in one[0]] == [
        ("triton::add", "default", 3 * 4 * N)
    ]
    assert launches() == {"interpreted": {"add": 1}, "by_reference": {}}


def test_a_kernel_may_write_in_place() -> None:
    x = numbers(N)
    before = x.cpu()
    kernels.double_in_place[(8,)](x, N, BLOCK=128)
    assert torch.equal(x.cpu(), before * 2)


def test_a_race_through_a_kernel_is_told_with_its_line() -> None:
    x = simulated_gpu.name(numbers(N), "weights")
    torch.cuda.synchronize()
    side = simulated_gpu.name(torch.cuda.Stream(), "side")
    with raced(r"aten::sum .*reads 'weights'\+0, written by triton::double_in_place .*'side'"):
        with torch.cuda.stream(side):
            kernels.double_in_place[(8,)](x, N, BLOCK=128)
        x.sum()
    torch.cuda.synchronize()
    with raced(r"triton::double_in_place .*writes 'weights'\+0, read by aten::sum") as told:
        x.sum()
        with torch.cuda.stream(side):
            kernels.double_in_place[(8,)](x, N, BLOCK=128)
    assert str(told.value).splitlines()[-1].lstrip().startswith("test_triton.py:")


def test_kernels_that_wait_do_not_race() -> None:
    x = numbers(N)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with detect_races():
        with torch.cuda.stream(side):
            kernels.double_in_place[(8,)](x, N, BLOCK=128)
        torch.cuda.current_stream().wait_stream(side)
        x.sum()


def test_two_kernels_may_read_at_once() -> None:
    x, y = numbers(N), numbers(N)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with detect_races():
        first = added(x, y)
        with torch.cuda.stream(side):
            second = added(x, y)
        torch.cuda.synchronize()
    assert torch.equal(first, second)


def test_only_what_the_programs_touch_can_race() -> None:
    x = numbers(N)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with detect_races():
        with torch.cuda.stream(side):
            kernels.double_in_place[(1,)](x, N, BLOCK=128)
        x[128:].sum()
    with raced("written by triton::double_in_place"):
        x[127:].sum()


def test_addresses_in_a_table_are_accesses_too() -> None:
    x, y = numbers(100), numbers(60)
    table = torch.tensor([[x.data_ptr(), 100], [y.data_ptr(), 60]]).cuda()
    before = x.cpu(), y.cpu()
    torch.cuda.synchronize()
    with raced("written by triton::double_by_table"):
        with torch.cuda.stream(torch.cuda.Stream()):
            kernels.double_by_table[(2,)](table, BLOCK=128)
        y.sum()
    torch.cuda.synchronize()
    assert torch.equal(x.cpu(), before[0] * 2)
    assert torch.equal(y.cpu(), before[1] * 2)


def test_memory_that_is_nobodys_is_an_illegal_access() -> None:
    x = numbers(N)
    with pytest.raises(RuntimeError, match=r"illegal memory access.*'double_in_place'") as told:
        kernels.double_in_place[(8,)](x, N + 24, BLOCK=128)
    assert "\n" not in str(told.value)


def test_a_kernel_reads_pinned_memory_and_no_other_of_the_host() -> None:
    x, pinned = numbers(N), torch.ones(N).pin_memory()
    assert torch.equal(added(x, pinned).cpu(), x.cpu() + torch.tensor(0.1))
    with pytest.raises(ValueError, match=r"at 1\) cannot be accessed from Triton"):
        added(x, torch.ones(N))


def test_atomics_count() -> None:
    x = torch.arange(256, device="cuda", dtype=torch.int32) % 7
    counts = torch.zeros(7, device="cuda", dtype=torch.int32)
    kernels.histogram[(4,)](x, counts, BLOCK=64)
    assert torch.equal(counts.cpu(), x.cpu().bincount().int())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_take_the_time_of_their_operations(dtype: torch.dtype) -> None:
    size = 32
    a, b = numbers(size, size, dtype=dtype), numbers(size, size + 0, dtype=dtype).t().contiguous()
    out = torch.empty(size, size, device="cuda")
    simulated_gpu.configure(
        flops_half=2e6, flops_single=1e6, bandwidth=1e15, launch_device=0, launch_host=0
    )
    kernels.product[(1,)](a, b, out, SIZE=size)
    seconds = simulated_gpu.statistics()["operations"]["triton::product"][1]
    rate = 1e6 if dtype == torch.float32 else 2e6
    assert seconds == pytest.approx(2 * size**3 / rate)
    torch.testing.assert_close(out, a.float() @ b.float())


def test_a_declared_cost_is_the_time() -> None:
    x = numbers(N)
    simulated_gpu.configure(bandwidth=1e6, launch_device=0)
    declare_cost(kernels.double_in_place, bytes_moved=lambda given: 1000.0 * given["n"])
    try:
        kernels.double_in_place[(8,)](x, N, BLOCK=128)
    finally:
        declare_cost(kernels.double_in_place)
    assert simulated_gpu.statistics()["operations"]["triton::double_in_place"][1] == 1.0


def test_what_cannot_be_interpreted_is_an_error_in_one_line() -> None:
    x, out = numbers(64), numbers(64)
    with pytest.raises(CannotInterpretError, match=r"'by_assembly' .*inline_asm.*") as told:
        kernels.by_assembly[(1,)](x, out, BLOCK=64)
    assert "\n" not in str(told.value)


def test_a_reference_does_what_the_interpreter_cannot() -> None:
    def reference(x: torch.Tensor, out: torch.Tensor, BLOCK: int) -> None:  # noqa: N803
        assert x.is_cpu
        seen.append(out[:BLOCK].clone())
        torch.mul(x, 2, out=out)

    seen: list[torch.Tensor] = []
    x, out = numbers(64), numbers(64) + 1
    before = out.cpu()
    torch.cuda.synchronize()
    register_reference(kernels.by_assembly, reference, writes=("out",))
    try:
        with raced(r"written by triton::by_assembly \(reference\)"):
            kernels.by_assembly[(1,)](x, out, BLOCK=64)
            with torch.cuda.stream(torch.cuda.Stream()):
                x.sum()  # it is only read
                out.sum()
    finally:
        register_reference(kernels.by_assembly, None)
    assert torch.equal(seen[0], before)  # what the interpreter had stored is taken back
    assert torch.equal(out.cpu(), x.cpu() * 2)
    assert launches() == {"interpreted": {}, "by_reference": {"by_assembly": 1}}


def test_fake_data_have_time_and_accesses() -> None:
    gc.collect()  # tensors in the frames of errors that tests looked at
    with simulated_gpu.fake_data():
        x, y, out = (torch.empty(1 << 24, device="cuda") for _ in range(3))
        torch.cuda.synchronize()
        kernels.add[(1 << 14,)](x, y, out, 1 << 24, 0.1, BLOCK=1024)
        with detect_races(), torch.cuda.stream(torch.cuda.Stream()):
            x.sum()
        with raced("written by triton::add"):  # noqa: SIM117 - this name
            with torch.cuda.stream(torch.cuda.Stream()):
                out.sum()
        del x, y, out
    seconds = simulated_gpu.statistics()["operations"]["triton::add"][1]
    assert seconds == pytest.approx(3 * (1 << 26) / 4.8e12, rel=0.1)


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (kernels.add, {"out"}),
        (kernels.double_in_place, {"x"}),
        (kernels.double_by_table, set()),
        (kernels.histogram, {"counts"}),
        (kernels.by_helpers, {"out", "sums"}),
    ],
)
def test_the_source_tells_what_a_kernel_stores_to(kernel: object, written: set[str]) -> None:
    assert stored(kernel) & {"x", "y", "out", "table", "counts", "sums"} == written


def test_an_autotuner_chooses_by_the_simulated_clock() -> None:
    x = numbers(512)
    out = torch.empty_like(x)
    kernels.tuned_copy[lambda given: (triton.cdiv(512, given["BLOCK"]),)](x, out, 512)
    assert torch.equal(out, x)
    assert kernels.tuned_copy.best_config.kwargs["BLOCK"] in {64, 256}
    assert launches()["interpreted"] == {"tuned_copy": 3}


def test_a_benchmark_is_of_the_simulated_clock() -> None:
    x = numbers(N)
    simulated_gpu.configure(bandwidth=1e6, launch_device=0, launch_host=0)
    taken = triton.testing.do_bench(lambda: kernels.double_in_place[(8,)](x, N, BLOCK=128))
    assert taken == pytest.approx(8 * N / 1e6 * 1e3)


def test_an_unknown_keyword_is_refused_as_on_a_gpu() -> None:
    with pytest.raises(KeyError, match="num_wraps was specified but unrecognised"):
        kernels.double_in_place[(8,)](numbers(N), N, BLOCK=128, num_wraps=4)


def test_warmup_compiles_for_the_device_that_is_simulated() -> None:
    x = numbers(N)
    compiled = kernels.double_in_place.warmup(x, N, BLOCK=128, grid=(8,))
    assert ".target sm_90" in compiled.asm["ptx"]
    assert launches()["interpreted"] == {}
    driver = triton.runtime.driver.active
    assert (driver.get_current_target().arch, driver.get_current_device()) == (90, 0)
    assert driver.utils.get_device_properties(0)["multiprocessor_count"] == 132


def test_an_empty_grid_launches_nothing() -> None:
    kernels.double_in_place[(0,)](numbers(N), N, BLOCK=128)
    assert launches()["interpreted"] == {}
