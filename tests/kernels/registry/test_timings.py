"""The file of timings: damage, two writers at once, places that cannot be written."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from neaptide.errors import NeaptideError
from neaptide_kernels.registry import Kernels, KernelWarning, Op, Timing
from neaptide_kernels.registry.timings import Table, default_path, merge, read


def timing(seconds: float) -> Timing:
    return Timing("mine", "1", {"warps": 4}, seconds)


WRITER = """
import sys
from pathlib import Path
from neaptide_kernels.registry import Timing
from neaptide_kernels.registry.timings import merge

for number in range(20):
    timing = Timing("mine", "1", {"warps": 4}, number + 1.0)
    merge(Path(sys.argv[1]), {f"{sys.argv[2]}|{number}": (timing,)})
"""


def test_two_processes_lose_nothing_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kernels.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(writer)])
        for writer in range(2)
    ]

    assert [0, 0] == [each.wait(60) for each in writers]
    assert {f"{w}|{n}": (timing(n + 1.0),) for w in range(2) for n in range(20)} == read(path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 1}', '{"version": 1, "timings": {"a": [3]}}']
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kernels.json"
    path.write_text(content)

    with pytest.raises(NeaptideError, match="are damaged; delete the file and tune again"):
        read(path)


def test_a_file_of_another_version_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    path.write_text('{"version": 2, "timings": "otherwise"}')

    assert {} == read(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(NeaptideError, match="cannot write the kernels' timings to"):
        merge(tmp_path / "file" / "kernels.json", {"a": (timing(1.0),)})


def test_where_timings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("NEAPTIDE_CACHE_DIR", raising=False)
    assert Path("/x/neaptide/kernels.json") == default_path()
    monkeypatch.setenv("NEAPTIDE_CACHE_DIR", str(tmp_path))
    assert tmp_path / "kernels.json" == default_path()


def test_no_home_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEAPTIDE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nowhere() -> Path:
        message = "Could not determine home directory."
        raise RuntimeError(message)

    monkeypatch.setattr(Path, "home", nowhere)

    with pytest.raises(NeaptideError, match="set NEAPTIDE_CACHE_DIR"):
        default_path()


def test_no_run_ends_for_a_file_that_only_says_what_is_fast(kernels: Kernels, double: Op) -> None:
    kernels.path.write_text("{")

    with pytest.warns(
        KernelWarning, match="are damaged; delete the file and tune again; kernels are chosen"
    ):
        assert torch.equal(torch.tensor([2.0]), double(torch.ones(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        double(torch.ones(2))  # said once

    with pytest.raises(NeaptideError, match="are damaged"):
        kernels.measure(double.spec.name, (torch.ones(1),), keep=True)


def test_a_run_that_tunes_goes_on_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "kernels.json.lock").mkdir()
    table = Table(lambda: tmp_path / "kernels.json")

    with pytest.warns(KernelWarning, match="cannot write .* used in this process only"):
        table.note("a", (timing(1.0),))

    assert (timing(1.0),) == table.of("a")
    with pytest.raises(NeaptideError, match="cannot write"):
        table.keep("b", (timing(1.0),))
    assert () == table.of("b")
