"""What every test starts from: one thread, fixed seeds, no deadline a loaded machine could miss."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator


# A shell's background job ignores Ctrl-C, and nohup a hangup; what is started here would, too.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    _number = getattr(signal, _name, None)  # Windows has no SIGHUP
    if _number is not None and signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

torch.set_num_threads(1)
settings.register_profile("neaptide", deadline=None, max_examples=50)
settings.load_profile("neaptide")


@pytest.fixture(autouse=True, scope="session")
def _measured_backward() -> None:
    """Let coverage see what hooks do in a backward on a GPU: autograd's thread is not Python's."""
    if "simulated_gpu" in sys.modules and threading.gettrace() is not None:
        one = torch.ones((), device="cuda", requires_grad=True)
        one.register_hook(lambda _: sys.settrace(threading.gettrace()))
        torch.autograd.grad(one * 1, one)


@pytest.fixture(autouse=True, scope="session")
def _other_rounding() -> Iterator[None]:
    """Let the simulated GPU round otherwise than the CPU if DEVICE_ROUNDS_OTHERWISE=1 is set."""
    if "simulated_gpu" in sys.modules and os.environ.get("DEVICE_ROUNDS_OTHERWISE"):
        from other_rounding import device_rounds_otherwise

        with device_rounds_otherwise():
            yield
    else:
        yield


@pytest.fixture(scope="module")
def on_device() -> Iterator[None]:
    """Let torch make tensors on `DEVICE` where no device is said."""
    from support import DEVICE

    with DEVICE:
        yield


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """Let torch make tensors on the CPU where no device is said, in a module with `on_device`."""
    with torch.device("cpu"):
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator of which a digest knows


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what takes long as slow, unless a single test was asked for."""
    from long_tests import LIST, SIMULATED, left_out

    if any("::" in one for one in config.args):
        return
    simulated = config.getoption("simulated_gpu", False)
    few = simulated and not os.environ.get("DEVICE_ROUNDS_OTHERWISE")  # which runs few rooms
    for path in (LIST, SIMULATED) if few else (LIST,):
        for item in left_out((one for one in items if "slow" not in one.keywords), path):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts of the faults that were tried."""
    from fault_counts import print_counts

    print_counts(terminalreporter)
