"""The finder of waits sees them wherever they stand, and takes out one at a time."""

from __future__ import annotations

import ast

import pytest
from waits import mutants_of

DONE = "__import__('neaptide_toolkit.offload', fromlist=['DONE']).DONE"
SOURCES = {
    "a statement": ("a.wait()", ["None"]),
    "an order": ("lane.hold(x)", ["None"]),
    "a stream that waits": ("stream.wait_event(event)", ["None"]),
    "the end of a chain": ("lane.submit('x', f).wait()", ["lane.submit('x', f)"]),
    "the host": ("a.finish()", ["None", "a.wait()"]),
    "arms": (
        "a.finish() if c else a.wait()",
        ["None if c else a.wait()", "a.wait() if c else a.wait()", "a.finish() if c else None"],
    ),
    "a lambda": ("f(lambda: a.synchronize())", ["f(lambda: None)"]),
    "tickets": ("s.submit('x', f, (a, b))", ["s.submit('x', f, (b,))", "s.submit('x', f, (a,))"]),
    "tickets with a name": (
        "after = (a, b)\ns.submit('x', f, after)",
        [
            "after = (b,)\ns.submit('x', f, after)",
            "after = (a,)\ns.submit('x', f, after)",
            "after = (a, b)\ns.submit('x', f, ())",
        ],
    ),
    "tickets by keyword": ("s.submit('x', f, after=t)", ["s.submit('x', f, after=())"]),
    "a ticket that is kept": ("x.free = s.submit('x', f)", ["_nobody = s.submit('x', f)"]),
    "a ticket that is given": (
        "t = s.submit('x', f)\nleaving(block, t)",
        [f"t = s.submit('x', f)\nleaving(block, {DONE})"],
    ),
    "computation": ("x.free = computed(device)", [f"x.free = {DONE}"]),
    "no wait": ("call.finish(outputs)\nsuper().wait()\nwait()", []),
}


@pytest.mark.parametrize("what", SOURCES)
def test_a_wait_is_found_and_taken_out(what: str) -> None:
    source, expected = SOURCES[what]
    found = [one.source for one in mutants_of("module", source)]
    assert sorted(found) == sorted(ast.unparse(ast.parse(one)) for one in expected)
