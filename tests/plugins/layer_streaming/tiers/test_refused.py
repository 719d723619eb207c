"""Settings of the tier `disk` that cannot be are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
from support import tiny_trainer

from neaptide import ConfigError

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tier": "disk"}, "'path' must name directories for tier = 'disk'"),
    ({"path": "/tmp"}, "'path' needs tier = 'disk'"),
    ({"ram_gib": 1.0}, r"'ram_gib' needs tier = 'disk' \(got 1.0\); host_gib limits the RAM"),
    ({"tier": "disk", "path": "/dev/shm"}, "keeps files in RAM; name one on a disk"),
    ({"tier": "disk", "path": "/nowhere"}, "'/nowhere' is not a directory"),
    ({"tier": "disk", "path": [""]}, r"'path' must name directories for tier = 'disk' \(got \(''"),
    ({"tier": "disk", "path": "/tmp", "ram_gib": -1.0}, "must be >= 0"),
    ({"tier": "disk", "path": "/tmp", "optimizer_on": "cpu"}, "with tier = 'disk'"),
    ({"inputs": "disk"}, "'inputs' must be 'device' or 'host' without tier = 'disk'"),
    (
        {"tier": "disk", "path": "/tmp", "inputs": "disk", "mode": "graph"},
        r"'inputs' must be 'device' with mode = 'graph' \(got 'disk'\)",
    ),
    ({"tier": "flash"}, "flash"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_cannot_be_is_refused_in_a_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        tiny_trainer({"plugins": {"layer-streaming": settings}})
    assert "\n" not in str(refused.value)
    assert "@ plugins.layer-streaming" in str(refused.value)
