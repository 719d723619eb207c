"""An observer that raises, wherever it is asked, is dropped with one event; the run goes on."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from support import plugin_with, stranger, tiny_trainer

from neaptide import PluginError, hookimpl
from neaptide.api.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from neaptide import PluginSpec

NUMBERS = (
    *(errno.EIO, errno.EDQUOT, errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.ESTALE),
    *(errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENOENT, errno.ENODEV),
)


def failing(number: int) -> Callable[..., Any]:
    def method(self: Any, *_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return method


def listening(*, entering: bool, error: BaseException | None = None) -> Callable[..., None]:
    """Return `on_run_start` of a plugin whose listener fails at the fifth part of the run."""

    error = error or OSError(errno.EIO, "gone")

    @contextmanager
    def opener(left: list[int]) -> Iterator[None]:
        left[0] -= 1
        if entering and left[0] == 0:
            raise error
        yield
        if left[0] <= 0:
            raise error

    @hookimpl
    def on_run_start(self: Any, run: Any) -> None:
        left = [5]
        run.timeline.listen(lambda name, category: opener(left))

    return on_run_start


@hookimpl
def collect_metrics(self: Any) -> dict[str, float]:
    return {"size": 10**5000}


class OwnError(BaseException):
    """No Exception, and not what ends a process."""


class UnprintableError(OwnError):
    """An error whose text cannot be made, and that takes no note."""

    def __str__(self) -> str:
        raise type(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError(name)


def own(kind: type[BaseException], hook: str) -> dict[str, Any]:
    """Return the implementation of `hook` that raises `kind`."""

    def method(self: Any) -> Any:
        raise kind

    return {hook: method if hook.endswith("state_dict") else hookimpl(method)}


def own_on_loading(self: Any, state: Any) -> None:
    raise OwnError


OBSERVERS: dict[str, dict[str, Any]] = {
    **{f"state_dict: {errno.errorcode[one]}": {"state_dict": failing(one)} for one in NUMBERS},
    **{
        f"load_state_dict: {errno.errorcode[one]}": {"load_state_dict": failing(one)}
        for one in NUMBERS
    },
    "a listener that fails as a part begins": {"on_run_start": listening(entering=True)},
    "a listener that fails as a part ends": {"on_run_start": listening(entering=False)},
    **{
        f"{hook}: {kind.__name__}": own(kind, hook)
        for kind in (OwnError, UnprintableError)
        for hook in ("state_dict", "collect_metrics", "on_run_start", "after_step", "on_run_end")
    },
    "load_state_dict: OwnError": {"load_state_dict": own_on_loading},
    "a listener with an error of its own": {
        "on_run_start": listening(entering=True, error=OwnError())
    },
    "a metric that is no float": {"collect_metrics": collect_metrics},
}


def spec_of(members: dict[str, Any], *, observer: bool = True) -> PluginSpec:
    return stranger(plugin_with(**members), "watcher", observer=observer)


def fitted(directory: Path, plugins: list[Any], **given: Any) -> dict[str, Any]:
    config = {"run": {"dir": str(directory), "log_every": 1}, "train": {"steps": 6}}
    trainer, batches = tiny_trainer(config, plugins)
    with trainer:
        return trainer.fit(batches, **given)


@pytest.mark.parametrize("name", OBSERVERS)
def test_a_run_goes_on_without_an_observer_that_raises(name: str, tmp_path: Path) -> None:
    expected = fitted(tmp_path / "alone", [])["digest"]
    spec = spec_of(OBSERVERS[name])
    assert expected == fitted(tmp_path / "run", [spec])["digest"]
    assert expected == fitted(tmp_path / "run", [spec], resume="auto")["digest"]
    lines = (tmp_path / "run/events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line)["event"] for line in lines]
    dropped = {"plugin.quarantined", "timeline.listener_removed"}
    assert 1 <= sum(event in dropped for event in events) <= 2  # one in each of the two runs


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
)
def test_what_ends_a_process_ends_the_run(kind: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(kind):
        fitted(tmp_path, [spec_of(own(kind, "after_step"))])


@pytest.mark.parametrize("name", ["state_dict: EIO", "a metric that is no float"])
def test_what_is_no_observer_ends_the_run_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises((OSError, PluginError)) as caught:
        fitted(tmp_path, [spec_of(OBSERVERS[name], observer=False)])
    assert "watcher" in " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


@pytest.mark.parametrize("suppresses", [False, True])
def test_a_listener_does_not_touch_the_error_of_the_part_it_watches(*, suppresses: bool) -> None:
    class Listener:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> bool:
            if not suppresses:
                raise KeyError
            return True

    timeline = Timeline()
    timeline.listen(lambda name, category: Listener())
    with pytest.raises(ZeroDivisionError), timeline.open("a", "b"):
        raise ZeroDivisionError
    assert suppresses is (timeline.opener is not None)
