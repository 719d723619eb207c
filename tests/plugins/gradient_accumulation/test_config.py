"""Settings that contradict each other are refused, each with its place."""

from __future__ import annotations

from typing import Any

import pytest
from support import tiny_trainer

from neaptide import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"scale_lr": True}, "'scale_lr' needs across_steps = true (got True)"),
        ({"normalize": False}, "'normalize' = false needs across_steps = true (got False)"),
        ({"step": 2}, "did you mean 'steps'?"),
    ],
)
def test_a_bad_setting_is_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny_trainer({"plugins": {"gradient-accumulation": settings}})
    assert message in str(caught.value)
    assert "plugins.gradient-accumulation" in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())
