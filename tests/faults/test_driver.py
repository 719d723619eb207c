"""A driver that is missing, fails, hangs or sees no GPU changes no bit of a run."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support import some, tiny_trainer

from neaptide_plugins.profiler import session
from neaptide_plugins.profiler.nvml import Nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CALLS = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo")
CODES = range(1, 30)
"""NVML's return codes; pynvml has a class of errors for each."""


def driver(devices: int = 1, **calls: Callable[..., Any]) -> ModuleType:
    """Return what stands for pynvml, with `calls` in the place of its own."""
    module = ModuleType("pynvml")
    module.__dict__.update(
        {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: devices,
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=12345),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=61),
            "nvmlShutdown": lambda: None,
            **calls,
        }
    )
    return module


def failing(code: int, after: int = 0) -> Callable[..., Any]:
    """Return a call that raises NVML's error of `code`, after some answers."""
    left = iter(range(after))

    def call(*_: Any) -> Any:
        if next(left, None) is None:
            raise type(f"NVMLError_{code}", (Exception,), {})(code)
        return SimpleNamespace(used=12345)

    return call


def trained(directory: Path, **plugins: Any) -> str:
    config = {"run": {"dir": str(directory)}, "train": {"steps": 5}, "plugins": plugins}
    trainer, batches = tiny_trainer(config)
    with trainer:
        digest: str = trainer.fit(batches)["digest"]
        assert [*plugins] == [*trainer.hooks.plugins]
        return digest


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Return a function that trains with a profiler beside a driver; it returns the digest."""
    watching: list[Nvml] = []

    def nvml(uuid: str) -> Nvml:
        watching.append(Nvml(uuid, interval=0.0, patience=0.05))
        return watching[-1]

    def run(module: ModuleType | None) -> str:
        monkeypatch.setitem(sys.modules, "pynvml", module)
        with monkeypatch.context() as patched:
            patched.setattr(session, "Nvml", nvml)
            patched.setattr(session, "uuid_of", lambda _: "1")
            patched.setattr(session, "is_cuda", lambda _: True)
            found = trained(tmp_path / f"run-{len(watching)}", profiler={})
            if module is not None:
                assert watching[-1].problem is not None or watching[-1]._latest is not None
            return found

    yield run
    for each in watching:
        each.close()
    assert watching


@pytest.fixture
def expected(tmp_path: Path) -> str:
    return trained(tmp_path / "without")


def test_a_missing_driver(digest: Callable[..., str], expected: str) -> None:
    assert expected == digest(None)


def test_a_driver_that_works_or_sees_no_gpu(digest: Callable[..., str], expected: str) -> None:
    assert [expected] * 2 == [digest(driver()), digest(driver(devices=0))]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", some(CODES, of=10))
def test_every_code(digest: Callable[..., str], expected: str, call: str, code: int) -> None:
    assert expected == digest(driver(**{call: failing(code)}))


@pytest.mark.parametrize("code", some(CODES, of=10))
def test_every_code_once_it_has_answered(
    digest: Callable[..., str], expected: str, code: int
) -> None:
    assert expected == digest(driver(nvmlDeviceGetMemoryInfo=failing(code, after=2)))


@pytest.mark.parametrize("call", CALLS)
def test_a_driver_that_hangs(digest: Callable[..., str], expected: str, call: str) -> None:
    forever = threading.Event()
    try:
        assert expected == digest(driver(**{call: lambda *_: forever.wait(30.0)}))
    finally:
        forever.set()


def test_an_instance_of_mig(digest: Callable[..., str], expected: str) -> None:
    def by_uuid(uuid: str) -> str:
        return uuid if uuid.startswith("MIG-") else failing(6)()

    calls = {"nvmlDeviceGetHandleByUUID": by_uuid, "nvmlDeviceGetUtilizationRates": failing(3)}
    assert expected == digest(driver(**calls))
