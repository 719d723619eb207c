"""The file of timings: damage, two writers at once, places that cannot be written."""

import multiprocessing
from pathlib import Path

import pytest

from neaptide.errors import NeaptideError
from neaptide.kernels import Timing
from neaptide.kernels.timings import default_path, merge, read


def timing(seconds: float) -> Timing:
    return Timing("mine", "1", {"warps": 4}, seconds)


def _write(path: Path, writer: int) -> None:
    for number in range(20):
        merge(path, {f"{writer}|{number}": (timing(number + 1.0),)})


def test_two_processes_lose_nothing_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kernels.json"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, writer)) for writer in range(2)]
    for each in writers:
        each.start()
    for each in writers:
        each.join(60)

    assert [0, 0] == [each.exitcode for each in writers]
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
