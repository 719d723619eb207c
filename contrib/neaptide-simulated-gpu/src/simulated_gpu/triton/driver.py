"""Triton's driver for the simulated device: what programs ask of it, and a clock to tune by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.jit import JITFunction

from simulated_gpu.triton.running import run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WARP = 32


class Driver(DriverBase):  # type: ignore[misc]  # Triton has no types
    """Answers for the simulated device. Compiled kernels cannot be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.utils = SimpleNamespace(get_device_properties=_properties, load_binary=_refuse)
        self.launcher_cls = _refuse
        self.get_current_device = torch.cuda.current_device
        self.set_current_device = torch.cuda.set_device
        self.get_device_capability = torch.cuda.get_device_capability

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_stream(self, index: int) -> int:
        return torch.cuda.current_stream(index).cuda_stream

    def get_current_target(self) -> GPUTarget:
        major, minor = torch.cuda.get_device_capability()
        return GPUTarget("cuda", major * 10 + minor, _WARP)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> Any:
        return torch.cuda

    def map_python_to_cpp_type(self, ty: str) -> NoReturn:
        _refuse(ty)

    def get_benchmarker(self) -> Callable[..., Any]:
        return do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1, dtype=torch.int, device="cuda")  # no second-level cache is modelled

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()


def do_bench(
    fn: Callable[[], Any], warmup: float = 0, rep: float = 0, grad_to_none: Any = None,  # noqa: ARG001
    quantiles: Sequence[float] | None = None, return_mode: str = "mean",
) -> Any:  # fmt: skip
    """Return the simulated milliseconds of one call, which is as good as a hundred calls."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    fn()
    end.record()
    torch.cuda.synchronize()
    taken = start.elapsed_time(end)
    if quantiles is not None:
        return taken if len(quantiles) == 1 else [taken] * len(quantiles)
    return [taken] if return_mode == "all" else taken


def _properties(index: int) -> dict[str, int]:
    given = torch.cuda.get_device_properties(index)
    return {
        "multiprocessor_count": given.multi_processor_count,
        "max_shared_mem": 227 << 10,
        "max_num_regs": 64 << 10,
        "warpSize": _WARP,
    }


def _refuse(*_: Any) -> NoReturn:
    msg = "the simulated GPU loads no compiled kernels: launch kernel[grid](...) instead"
    raise RuntimeError(msg)


def install() -> None:
    """Have Triton's kernels run on the simulated device."""
    JITFunction.run = run
    triton.testing.do_bench = do_bench
    triton.runtime.driver.set_active(Driver())
