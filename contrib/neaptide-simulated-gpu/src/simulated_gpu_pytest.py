"""`pytest --simulated-gpu`: the tests run with a simulated CUDA device, and a race fails its test.

A module of its own, imported before anything imports torch; without the option it does nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

LAUNCHES = "simulated-gpu-launches"
RACES = "races on the simulated device"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--simulated-gpu",
        action="store_true",
        help="run with a simulated CUDA device; a race fails the test that caused it",
    )
    parser.addoption(
        "--simulated-gpu-capacity",
        type=float,
        default=8.0,
        metavar="GIB",
        help="memory of the simulated device (default: 8)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Import the device before a conftest imports torch."""
    if not early_config.known_args_namespace.simulated_gpu:
        return
    if "torch" in sys.modules:
        msg = "--simulated-gpu: a plugin of pytest has imported torch already"
        raise pytest.UsageError(msg)
    import simulated_gpu

    capacity = early_config.known_args_namespace.simulated_gpu_capacity
    try:
        simulated_gpu.configure(capacity=capacity * 2**30)
    except ValueError as error:
        msg = f"--simulated-gpu-capacity: {error}"
        raise pytest.UsageError(msg) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> object:
    """Start each test with no races and the clock at 0."""
    if item.config.option.simulated_gpu:
        import simulated_gpu

        simulated_gpu.reset()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> object:
    """Note how many operations a test launched."""
    if not item.config.option.simulated_gpu:
        return (yield)
    import simulated_gpu

    try:
        return (yield)
    finally:
        item.user_properties.append((LAUNCHES, simulated_gpu.statistics()["launches"]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail the setup, the call or the teardown that raced, also where a failure was expected."""
    report = yield
    if item.config.option.simulated_gpu:
        from simulated_gpu.races import taken

        if found := taken():
            _tell(report, "\n".join(found))
    return report


def _tell(report: pytest.TestReport, found: str) -> None:
    if report.failed:
        report.sections.append((RACES, found))
        return
    report.outcome = "failed"
    report.longrepr = f"{RACES}:\n{found}"
    if hasattr(report, "wasxfail"):
        del report.wasxfail


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many tests used the device."""
    if not config.option.simulated_gpu:
        return
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.stats.get(kind, [])]
    launches = [
        count
        for one in reports
        if one.when == "call"
        for name, count in one.user_properties
        if name == LAUNCHES
    ]
    terminalreporter.write_line(
        f"simulated GPU: {sum(map(bool, launches))} of {len(launches)} tests ran on the device, "
        f"{sum(launches)} operations"
    )
