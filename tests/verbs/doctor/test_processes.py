"""What `neaptide doctor` says of several processes, alone and with others."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
from several import run_together

from neaptide_verbs.doctor.processes import findings

if TYPE_CHECKING:
    from pathlib import Path

DOCTOR = ("-m", "neaptide", "doctor", "--json", "--no-disk")


def test_processes_compare_versions_and_measure_their_link(tmp_path: Path) -> None:
    first, second = run_together(2, DOCTOR, cwd=tmp_path)
    assert ("", "") == (second.stdout, second.stderr)
    report = json.loads(first.stdout)
    link = report["facts"]["link"]
    assert [socket.gethostname()] * 2 == link["hosts"]
    assert link["rate"] > 1e6
    assert 0 < link["seconds"] < 1
    told = {one["what"]: one["detail"] for one in report["findings"]}
    assert told["processes"].startswith("2 with equal versions, on ")
    assert "/s for tensors, " in told["link"]


def test_one_process_has_no_link() -> None:
    assert ["gloo", "NCCL", "host name"] == [found.what for found in findings(None)]


@pytest.mark.parametrize("address", ["127.0.1.1", None])
def test_a_name_that_others_cannot_reach_is_a_note(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*_: object) -> list[object]:
        if address is None:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, None, 0, "", (address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    (note,) = (one for one in findings(None) if one.what == "host name")
    assert "note" == note.level
    assert note.advice is not None
    assert "GLOO_SOCKET_IFNAME" in note.advice
