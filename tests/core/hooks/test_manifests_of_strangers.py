"""Wrong values in a stranger's manifest, and names that two distributions give, are one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import warm
from distributions import install
from support import environment

from neaptide import PluginError, PluginSpec

if TYPE_CHECKING:
    from pathlib import Path

WRONG: dict[str, tuple[Any, str]] = {
    "name": ("X wing", "small letters, digits and hyphens (got 'X wing')"),
    "load": (5, "a string (got 5)"),
    "config": ({}, "a class (got {})"),
    "summary": (None, "a string (got None)"),
    "version": ("1", "a whole number (got '1')"),
    "claims": ("predictor", "a set of names (got 'predictor')"),
    "requires": ([1], "a set of names (got [1])"),
    "conflicts": (5, "a set of names (got 5)"),
    "before": ([["ema"]], "a set of names (got [['ema']])"),
    "after": (None, "a set of names (got None)"),
    "phases": ("full", "a set of names (got 'full')"),
    "schemes": ("model:x", "a set of names (got 'model:x')"),
    "options": ({"model:x": 5}, "a dict of classes (got {'model:x': 5})"),
    "needs": ("grad_norm", "a set of names (got 'grad_norm')"),
    "search_space": ([{}], "a tuple of dicts (got [{}])"),
    "dry_run": ([], "a dict (got [])"),
    "presets": ({"fast": 3}, "a dict of dicts (got {'fast': 3})"),
    "converts": ([], "a dict of strings (got [])"),
    "numerics": ("approx", "one of exact, tolerance, changes-training (got 'approx')"),
    "rtol": (True, "a number (got True)"),
    "observer": (1, "True or False (got 1)"),
}
SOUND = (
    "from neaptide.plugin import PluginSpec\nSPEC = PluginSpec(name={name!r}, load='nowhere:X')\n"
)


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_is_refused_by_the_manifest(field: str) -> None:
    value, form = WRONG[field]
    given: dict[str, Any] = {"name": "x-wing", "load": "x:Wing", field: value}
    with pytest.raises(PluginError) as caught:
        PluginSpec(**given)
    assert f"{field} must be {form}" == str(caught.value)


def test_names_may_come_in_any_iterable() -> None:
    for names in (["a", "b"], ("a", "b"), {"a", "b"}, {"a": 1, "b": 2}, iter("ab")):
        assert {"a", "b"} == PluginSpec(name="x", load="x:X", claims=names).claims  # type: ignore[arg-type]


def named(field: str) -> str:
    """Return the name of the plugin whose manifest is wrong in `field`."""
    return f"x-{field}".replace("_", "-")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where distributions with wrong manifests, and with the same names, are installed."""
    site = tmp_path_factory.mktemp("site")
    for field, (value, _) in WRONG.items():
        name = named(field)
        given = {"name": name, "load": "nowhere:X", field: value}
        source = f"from neaptide.plugin import PluginSpec\nSPEC = PluginSpec(**{given!r})\n"
        entries = {"neaptide.plugins": {name: f"x_{field}:SPEC"}}
        install(site, f"dist-{field}", entries, {f"x_{field}.py": source})
    shared = {"x_shared.py": SOUND.format(name="x-shared")}
    for name, files in (("one", shared), ("two", None)):
        entries = {
            "neaptide.plugins": {"x-shared": "x_shared:SPEC"},
            "neaptide.formats": {"xml": "x_xml"},
            "neaptide.verbs": {"x-verb": "x_verb:verb"},
        }
        install(site, f"x-{name}", entries, files)
    (site / "x_xml.py").write_text("raise OSError('imported')\n", encoding="utf-8")
    (site / "x_verb.py").write_text("def verb(): ...\n", encoding="utf-8")
    return site


def neaptide(site: Path, *arguments: str) -> tuple[int, str, str]:
    """Run the command line with `site` on the path; return its code and what it wrote."""
    done = warm.run(["-m", "neaptide", *arguments], cwd=site, env=environment(site))
    return done.returncode, done.stdout, done.stderr


def test_the_list_has_each_wrong_manifest_with_its_distribution(site: Path) -> None:
    code, out, err = neaptide(site, "plugins", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (0, "") == (code, err)
    for field, (_, form) in WRONG.items():
        raised = f"importing 'x_{field}:SPEC' raised PluginError: {field} must be {form}"
        row = rows[named(field)]
        assert (raised, f"dist-{field} 1.0") == (row["problem"], row["distribution"])
    both = "x-one 1.0 and x-two 1.0 both ship a plugin of this name; uninstall one"
    assert both == rows["x-shared"]["problem"]


@pytest.mark.parametrize("field", ["numerics", "claims", "load", "name"])
def test_who_enables_a_wrong_manifest_reads_one_line(site: Path, field: str) -> None:
    (site / "a.toml").write_text(f"[plugins.x-{field}]\n", encoding="utf-8")
    code, out, err = neaptide(site, "config", "check", "a.toml")
    (line,) = err.splitlines()
    assert (2, "") == (code, out)
    assert line.startswith(f"error: plugin 'x-{field}' from dist-{field} 1.0 cannot be used: ")


def test_one_name_of_two_distributions_is_refused_though_both_mean_the_same(site: Path) -> None:
    (site / "b.toml").write_text("[plugins.x-shared]\n", encoding="utf-8")
    (site / "c.xml").write_text("", encoding="utf-8")
    (site / "d.yaml").write_text("version: 1\n", encoding="utf-8")
    both = "x-one 1.0 and x-two 1.0 both ship a {} of this name; uninstall one"
    for arguments, what, end in (
        (("config", "check", "b.toml"), "plugin 'x-shared' from", ""),
        (("config", "check", "c.xml"), "format 'xml' of", " @ c.xml"),
        (("x-verb",), "verb 'x-verb' from", ""),
    ):
        code, out, err = neaptide(site, *arguments)
        told = f"error: {what} x-two 1.0 cannot be used: {both.format(what.split()[0])}{end}\n"
        assert (2, "", told) == (code, out, err)
    (site / "d.yml").write_text("version: 1\n", encoding="utf-8")  # a suffix that is looked for
    assert 0 == neaptide(site, "config", "check", "d.yml")[0]
