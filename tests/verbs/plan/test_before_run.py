"""What `neaptide run` plans by itself, and refuses before the memory is taken."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from command_line import folder, neaptide
from plans import CONFIG, KINDS
from torch import nn

from neaptide.errors import DoesNotFitError
from neaptide_verbs.plan import before_run
from neaptide_verbs.plan.asking import Answer
from neaptide_verbs.plan.before_run import CountedFactory, LargeModelFound
from neaptide_verbs.plan.machine import PlannedMachine

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder", "neaptide"]

MIB = 2**20
FACTORY = """
from torch import nn

from neaptide_toolkit.testing import kinds

built = []


def layer():
    built.append(1)
    return nn.Linear(1024, 1024, bias=False)


def model(layers=20):
    try:
        deep = nn.Sequential(*(layer() for _ in range(layers)))
        return deep, lambda model, batch: model(batch.repeat(1, 1, 16)).mean()
    except Exception:
        raise SystemExit("the factory has seen the end of its own building")


def at_once():
    return nn.ParameterList([nn.Parameter(kinds.torch.randn(1 << 24, 1 << 24))])


def small():
    return kinds.deep(2, 64)
"""
OWN = f"""
version = 1
model.name = "own:NAME"
data = {{name = "{KINDS}:sequences", options = {{width = 64}}}}
train = {{device = "cpu", steps = 2}}
"""


def machine(host: int) -> PlannedMachine:
    return PlannedMachine(name="a small CPU", device=None, host=host, rates=None)


@pytest.fixture
def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that writes a configuration whose model is a factory of this file."""
    (folder / "own.py").write_text(FACTORY)
    monkeypatch.delitem(sys.modules, "own", raising=False)

    def write(factory: str) -> str:
        (folder / "own.toml").write_text(OWN.replace("NAME", factory))
        return "own.toml"

    return write


def has(monkeypatch: pytest.MonkeyPatch, host: int) -> None:
    monkeypatch.setattr(before_run, "free_now", lambda _: machine(host))


def not_asked(*_: object) -> Answer:
    msg = "a plan was made"
    raise AssertionError(msg)


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_refused_while_it_is_built(
    own: Any, neaptide: Any, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    has(monkeypatch, 256 * MIB)
    done = neaptide("run", own("model"), "--quiet")
    assert done.code == 3
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: does not fit: RAM needs ")
    assert "of 256.0 MiB (" in line
    assert "no change that a plugin offers is enough" in line
    assert 'run.plan = "off"' in line
    # The ninth layer of 4 MiB is more than an eighth of RAM.
    assert len(sys.modules["own"].built) in (8, 9)
    assert {path.name for path in folder.glob("runs/*/*")} <= {".lock"}


def test_a_tensor_larger_than_ram_is_never_allocated(own: Any, neaptide: Any) -> None:
    for plan in ("auto", "always"):
        done = neaptide("run", own("at_once"), "--set", f"run.plan={plan}")
        assert done.code == 3
        assert "error: does not fit: the model has a tensor of 1024.0 TiB, and RAM has" in done.err


def test_a_refusal_names_the_nearest_change(
    folder: Path, neaptide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.toml").write_text(CONFIG.format(layers=2, width=64))
    has(monkeypatch, 10**9)
    refused = Answer(fits=False, verdict="does not fit: RAM needs 2 of 1", best="plugins.ema = 1")
    monkeypatch.setattr(before_run, "ask", lambda *_: refused)
    done = neaptide("run", "mine.toml", "--set", "run.plan=always")
    assert done.code == 3
    assert "error: does not fit: RAM needs 2 of 1; nearest: plugins.ema = 1; run.plan" in done.err


def test_a_small_run_is_not_planned(
    own: Any, neaptide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_run, "ask", not_asked)
    assert neaptide("run", own("small"), "--quiet").code == 0


def test_a_run_that_plans_nothing_never_asks(
    own: Any, neaptide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_run, "ask", not_asked)
    has(monkeypatch, 1024)
    assert neaptide("run", own("small"), "--quiet", "--set", "run.plan=off").code == 0


def test_a_planned_run_is_the_run_bit_for_bit(
    folder: Path, neaptide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Answer] = []

    def asking(*given: Any) -> Answer:
        asked.append(before_run_ask(*given))
        return asked[-1]

    before_run_ask = before_run.ask
    monkeypatch.setattr(before_run, "ask", asking)
    monkeypatch.setattr(before_run, "SHARE", 2**40)
    digests = set()
    for plan in ("off", "auto", "always"):
        command = ("run", "tiny.toml", "--json", f"--set=run.plan={plan}", f"--set=run.dir={plan}")
        done = neaptide(*command)
        assert done.code == 0, done.err
        weights = [*(folder / plan / "checkpoints").glob("*/*.safetensors")]
        assert weights
        digests.add(tuple(path.read_bytes() for path in sorted(weights)))
    assert len(digests) == 1
    assert [attrs.evolve(one, verdict="", needed={}) for one in asked] == [Answer(), Answer()]


def test_a_run_that_cannot_be_planned_says_so_and_trains(
    own: Any, neaptide: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(before_run, "ask", lambda *_: Answer(problem="it needs values"))
    done = neaptide("run", own("small"), "--quiet", "--set", "run.plan=always")
    assert done.code == 0
    assert "the run is not planned: it needs values" in caplog.text + done.err


def test_sizes_are_counted_before_memory_is_taken() -> None:
    with pytest.raises(LargeModelFound), CountedFactory(10**6, 10**15):
        torch.randn(10**12)
    with pytest.raises(DoesNotFitError), CountedFactory(10**6, 10**9):
        torch.ones(10**12)
    with CountedFactory(10**6, 10**9), torch.device("meta"):
        nn.Linear(10**6, 10**6)


def test_counting_changes_no_value() -> None:
    torch.manual_seed(3)
    expected = [one.detach() for one in nn.TransformerEncoderLayer(16, 2).parameters()]
    torch.manual_seed(3)
    with CountedFactory(10**9, 10**9):
        found = [one.detach() for one in nn.TransformerEncoderLayer(16, 2).parameters()]
    assert all(map(torch.equal, expected, found))


def test_what_is_made_by_copies_counts() -> None:
    base = torch.zeros(1000)
    with pytest.raises(LargeModelFound), CountedFactory(10_000, 10**9):
        torch.cat([base.clone(), base.clone(), base.clone()])
