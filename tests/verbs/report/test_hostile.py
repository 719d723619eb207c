"""Whatever lies in a run directory, there is a report or one line that says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neaptide.cli import main
from neaptide.errors import NeaptideError
from neaptide.io.jsonable import jsonable
from neaptide_verbs.report.comparison import comparison_page, comparison_summary
from neaptide_verbs.report.facts import as_json
from neaptide_verbs.report.reading import read_run
from neaptide_verbs.report.single import run_page
from neaptide_verbs.report.summary import run_summary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[..., Path]

HOSTILE = (
    '<script>alert("x")</script>',
    "\x1b[31mred\x1b]0;title\x07",
    "nul\x00byte",
    "\u202eback\u2066wards",
    "\ud800 half a pair",
    "a\nline\rand\x85another\u2028",
    "x" * 5000,
    "</style></table><img src=//x onerror=y>",
    "',--;`$(rm)",
)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.add(tag)


def everything(path: Path) -> tuple[str, str]:
    """Return the terminal's text and the page of a run, once all outputs were made."""
    run = read_run(path)
    json.dumps(jsonable(as_json(run)), allow_nan=False)
    comparison_summary([run, run], colour=True)
    comparison_page([run, run]).encode("utf-8")
    page = run_page(run)
    page.encode("utf-8")
    return run_summary(run, colour=False), page


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_are_shown_and_not_obeyed(write: Write, text: str) -> None:
    cell = text.replace("\n", " ").encode("utf-8", "replace").decode().replace('"', '""')
    path = write(
        [f'1,"{cell}",1.0,false,,,0.1,,5'],
        events=[
            {"event": text, "level": text, "time": text, text: text, "step": 1},
            {"event": "jump.refused", "reason": text, "step": 1, "horizon": text},
            {"event": "run.stopped", "step": 1, "signal": text},
        ],
        metrics=[{"step": 1, "phase": text, text: 1.0}, {"step": 2, "phase": text, text: 2.0}],
        summary={"steps": 1, "digest": text, "peak_bytes": {text: {text: 1}}},
        files={
            "origins.json": json.dumps({"seed": text}),
            "machine.json": json.dumps({text: [text]}),
            "plugins/x/m.csv": f'step,phase,moment,a_bytes\n1,"{cell}","{cell}",5\n',
        },
        config="seed = 0",
    )
    shown, page = everything(path)
    assert shown.replace("\n", "").isprintable()
    assert not {"script", "img"} & Tags(page).found
    assert page.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "-1", "9" * 400, "9" * 4000]
)
def test_numbers_beyond_all_scales_are_shown(write: Write, number: str) -> None:
    jump = '{{"event": "jump.refused", "step": 1, "{}": {}}}\n'
    keys = ("seconds", "loss_before", "horizon", "norm", "level")
    path = write(
        ["1,full,1.0,false,,,0.1,,5"],
        files={
            "events.jsonl": "".join(jump.format(key, number) for key in keys),
            "machine.json": f'{{"memory": {number}, "all": [{number}]}}',
            "summary.json": f'{{"steps": 1, "backward_skipped": {number}, "seconds": {number}, '
            f'"peak_bytes": {{"full": {{"host_bytes": {number}}}}}}}',
        },
        config=f"seed = 0x{'f' * 9000}\nsizes = [0x{'f' * 9000}, 2020-01-01]",
    )
    everything(path)
    assert "finished" == read_run(path).status.kind


def test_lines_too_long_to_be_true_are_left_out(write: Write) -> None:
    path = write(
        [
            "1,full,1.0,false,,,,,",
            "2," + "x" * 2_000_000 + ",1.0,false,,,,,",
            "3,full,1.0,false,,,,,",
        ]
    )
    run = read_run(path)
    assert ({"steps.csv": 1}, 3, 2) == (run.damage, run.steps.last, run.steps.updates)


def test_what_is_no_file_is_not_read(write: Write) -> None:
    path = write(["1,full,1.0,false,,,,,"])
    for name in ("events.jsonl", "metrics.jsonl", "config.toml"):
        (path / name).unlink()
        (path / name).mkdir()
    (path / "plugins").mkdir()
    (path / "plugins" / "x").touch()
    (path / "checkpoints").touch()
    run = read_run(path)
    assert "interrupted" == run.status.kind
    assert {"events.jsonl": 1, "metrics.jsonl": 1, "config.toml": 1} == run.damage
    everything(path)


def test_a_table_of_memory_that_is_bytes_is_damage(write: Write) -> None:
    path = write(["1,full,1.0,false,,,,,"], files={"plugins/x/other.csv": "a,b\n1\n"})
    (path / "plugins/x/memory.csv").write_bytes(bytes(range(256)) * 8)
    assert {"memory.csv": 1} == read_run(path).damage


@pytest.mark.parametrize("depth", [10, 100_000])
def test_nesting_without_end(write: Write, depth: int) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    everything(
        write(files={"machine.json": nested, "summary.json": nested, "events.jsonl": f"{nested}\n"})
    )


WORDS = ("nan", "1e999", "-1", "", "9" * 400, "true", "\u0663", "1_000", '"', ",", "{}", "null")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a run of the tiny task with all its records, by name."""
    import torch  # noqa: F401 - the run itself; reports do without
    from support import CYCLE, tiny_trainer

    root = tmp_path_factory.mktemp("whole")
    config = {
        "run": {"dir": str(root / "run"), "log_every": 1, "checkpoint_every": 5},
        "train": {"steps": 12},
        "phases": CYCLE,
    }
    trainer, batches = tiny_trainer(config, {"profiler": {}, "ema": {}})
    with trainer:
        trainer.fit(batches, validation=batches[:1])
    files = [path for path in sorted((root / "run").rglob("*")) if path.is_file()]
    return {str(p.relative_to(root / "run")): p.read_bytes() for p in files}


def records(whole: dict[str, bytes]) -> list[str]:
    return [name for name in whole if not name.endswith(".safetensors")]


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_run_is_reported_or_refused_in_one_line(
    whole: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = dict(whole)
    for _ in range(data.draw(st.integers(1, 4), label="damages")):
        name = data.draw(st.sampled_from(records(whole)), label="file")
        content = damaged.get(name, b"")
        at = data.draw(st.integers(0, len(content)), label="at")
        kind = data.draw(st.sampled_from(["cut", "flip", "word", "gone", "twice"]), label="kind")
        if kind == "cut":
            damaged[name] = content[:at]
        elif kind == "flip":
            mask = data.draw(st.integers(1, 255), label="mask")
            damaged[name] = (
                content[:at] + bytes(b ^ mask for b in content[at : at + 1]) + content[at + 1 :]
            )
        elif kind == "word":
            word = data.draw(st.sampled_from(WORDS), label="word").encode()
            damaged[name] = content[:at] + word + content[at + len(word) :]
        elif kind == "gone":
            damaged.pop(name, None)
        else:
            damaged[name] = content + content
    root = tmp_path_factory.mktemp("damaged")
    for name, content in damaged.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    try:
        shown, page = everything(root)
    except NeaptideError as error:
        shown = page = str(error)
        assert "\n" not in shown
    assert shown.replace("\n", "").isprintable()
    assert "nan%" not in page


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    key=st.sampled_from(
        [
            "steps",
            "peak_bytes",
            "backward_skipped",
            "digest",
            "step",
            "in_a_row",
            "reason",
            "seconds",
            "horizon",
            "loss_before",
            "event",
            "level",
            "time",
            "phase",
            "val_loss",
            "train.max_skipped",
        ]
    ),
)
def test_values_of_every_type_anywhere(write: Write, value: Any, key: str) -> None:
    event = {"event": "jump.refused", "level": "info", "time": "t", "step": 1, key: value}
    everything(
        write(
            ["1,full,1.0,false,,,,,"],
            events=[event, {**event, "event": "run.stopped"}, {**event, "event": "update.skipped"}],
            metrics=[{"step": 1, "phase": "full", key: value}],
            summary={"steps": 1, key: value},
            files={
                "machine.json": json.dumps({key: value}),
                "origins.json": json.dumps({key: value}),
            },
        )
    )


def test_a_terminal_that_knows_no_unicode(
    write: Write, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    import io
    import sys

    path = write(["1,größe,1.0,false,,,,,"])
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert 0 == main(["report", str(path)])
    stream.flush()
    assert b"gr\\xf6\\xdfe" in stream.buffer.getvalue()  # type: ignore[attr-defined]


REPORTED = """
import sys
from pathlib import Path
from neaptide.cli import main
code = main(["report", sys.argv[1]])
(peak,) = [line for line in Path("/proc/self/status").read_text().split("\\n") if "VmHWM" in line]
print(f"{code} {int(peak.split()[1]) // 1024}", file=sys.stderr)
"""


def a_deep_key(run: Path) -> None:
    (run / "config.toml").write_text(f"{'.'.join(['a'] * 20_000)} = 1\n", encoding="utf-8")


def many_columns(run: Path) -> None:
    header, row = (",".join(f"{kind}{n}" for n in range(10_000)) for kind in ("x", "1"))
    text = f"step,phase,loss,{header}\n" + f"1,full,1.0,{row}\n" * 100
    (run / "steps.csv").write_text(text, encoding="utf-8")


def many_metrics(run: Path) -> None:
    line = json.dumps({"step": 1, "phase": "full", **{f"metric{n}": n for n in range(40_000)}})
    (run / "metrics.jsonl").write_text(f"{line}\n" * 40, encoding="utf-8")


def many_fields(run: Path) -> None:
    with (run / "events.jsonl").open("w", encoding="utf-8") as file:
        for step in range(400):
            fields = {f"{step} {number}": "v" * 300 for number in range(2500)}
            name = "jump.refused" if step % 2 else "x"
            file.write(json.dumps({"event": name, "level": "info", "step": step, **fields}) + "\n")


def many_tiers_and_phases(run: Path) -> None:
    folder = run / "plugins" / "x"
    folder.mkdir(parents=True)
    (run / "config.toml").write_text("[plugins.x]\n", encoding="utf-8")
    header = ",".join(f"tier{n}_bytes" for n in range(400))
    rows = (f"{step},{step % 16},now{',1' * 400}\n" for step in range(4000))
    text = f"step,phase,moment,{header}\n" + "".join(rows)
    for number in range(4):
        (folder / f"{number}.csv").write_text(text, encoding="utf-8")


def long_phases(run: Path) -> None:
    rows = (f"{step},{'p' * 1_000_000}{step},1.0\n" for step in range(500))
    text = "step,phase,loss\n" + "".join(rows)
    (run / "steps.csv").write_text(text, encoding="utf-8")


def blank(name: str) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        (run / name).write_bytes(b"\n" * 20_000_000)

    write.__name__ = f"blank lines in {name}"
    return write


def sparse(name: str) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        with (run / name).open("wb") as file:
            file.truncate(4 << 30)

    write.__name__ = f"a sparse {name}"
    return write


def a_pipe(run: Path) -> None:
    os.mkfifo(run / "events.jsonl")


NAMES = (
    "steps.csv",
    "metrics.jsonl",
    "events.jsonl",
    "summary.json",
    "config.toml",
    "origins.json",
)


WHOLE = (many_metrics, many_fields, many_tiers_and_phases, long_phases)
"""What is much, but not damaged."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "write",
    [
        *(a_deep_key, many_columns, a_pipe, *map(sparse, NAMES), *map(blank, NAMES[:3])),
        *WHOLE,
    ],
    ids=lambda write: write.__name__,
)
def test_a_report_takes_little_time_and_memory(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text("[run]\n", encoding="utf-8")
    write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", REPORTED, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    *_, last = done.stderr.splitlines()
    code, mebibytes = map(int, last.split())
    assert code == 0
    assert mebibytes < 400
    assert "Damaged and left out: " in done.stdout or write in WHOLE
    assert (tmp_path / "report.html").stat().st_size < 20_000_000


def test_a_long_damaged_file_is_counted_to_its_end(write: Write) -> None:
    path = write(["1,full,1.0,false,,,,,"])
    with (path / "steps.csv").open("a", encoding="utf-8") as file:
        file.write("damaged\n" * 300_000 + "2,full,1.0,false,,,,,\n")
    run = read_run(path)
    assert ({"steps.csv": 300_001}, 1) == (run.damage, run.steps.last)


def test_events_of_rare_names_are_counted_together(write: Write) -> None:
    levels = ("info", "warning", *(f"level{number}" for number in range(700)))
    events = [
        {"event": f"name{number}", "level": level, "step": 1}
        for level in levels
        for number in range(300 if level == "info" else 2)
    ]
    counts = read_run(write(events=events)).events.counts
    assert len(events) == counts.total()
    assert (1, 2) == (counts["info", "name299"], counts["warning", "(other)"])
    assert len(counts) <= 321
    assert "(other) (warning, 2 x)" in run_summary(read_run(write(events=events)), colour=False)


def test_what_is_left_out_of_an_event_is_said(write: Write) -> None:
    fields = {f"field{number}": number for number in range(100)}
    _, page = everything(write(events=[{"event": "x", "level": "info", "step": 1, **fields}]))
    assert "field36 36, fields left out 63" in page
