"""Which plugins a config and a call enable, and what is found wrong before an import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from support import plugin_with, stranger

from neaptide import ConfigError, PluginError, PluginSpec, RunConfig, field
from neaptide.hooks.enabling import configured, split_name

if TYPE_CHECKING:
    from pathlib import Path


@attrs.frozen(kw_only=True)
class Bits:
    """A stranger's settings."""

    bits: int = field(8, validator=attrs.validators.in_([4, 8]), help="width")


def spec(name: str, **manifest: Any) -> PluginSpec:
    """Return a manifest whose class nobody imports here."""
    return PluginSpec(name=name, load="nowhere:Nothing", **manifest)


def names(config: Any = None, plugins: Any = ()) -> list[str]:
    """Return what is enabled, in order."""
    return [found.name for found in configured(config, plugins)[1]]


def test_nothing_asked_for_is_nothing_enabled() -> None:
    full, ordered = configured(None)
    assert (RunConfig(), []) == (full, ordered)


def test_config_and_call_add_up() -> None:
    assert ["ema", "predictor-drift", "mine"] == names(
        {"plugins": {"ema": {}}}, ["predictor-drift", spec("mine")]
    )


def test_named_in_both_is_enabled_once_with_the_configs_settings() -> None:
    mine = spec("mine", config=Bits)
    full, ordered = configured({"plugins": {"mine": {"bits": 4}}}, [mine, "mine"])
    assert ([mine], 4) == (ordered, full.plugins["mine"].bits)


def test_a_plugin_of_the_call_has_its_defaults() -> None:
    assert configured(None, [spec("mine", config=Bits)])[0].plugins["mine"].bits == 8


def test_a_manifest_handed_in_stands_before_the_installed_one() -> None:
    mine = spec("ema", summary="mine")
    assert [mine] == configured({"plugins": {"ema": {}}}, [mine])[1]


def test_a_run_config_is_taken_as_it_is() -> None:
    given, _ = configured({"train": {"steps": 7}}, ["ema"])
    assert given == configured(given)[0]


@pytest.mark.parametrize("as_text", [True, False])
def test_a_file_is_read(tmp_path: Path, *, as_text: bool) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[train]\nsteps = 7\n[plugins.ema]\n", encoding="utf-8")
    full, ordered = configured(str(path) if as_text else path)
    assert (7, ["ema"]) == (full.train.steps, [found.name for found in ordered])


def test_the_order_is_resolved_and_the_config_keeps_it() -> None:
    full, ordered = configured(None, [spec("a", after={"b"}), spec("b")])
    assert ["b", "a"] == [found.name for found in ordered] == list(full.plugins)


def test_disabled_by_the_environment_stays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEAPTIDE_DISABLED_PLUGINS", "ema")
    assert ["predictor-drift"] == names({"plugins": {"ema": {}}}, ["ema", "predictor-drift"])


def test_an_unknown_plugin_is_refused_with_a_suggestion() -> None:
    for config, plugins in (({"plugins": {"emma": {}}}, []), (None, ["emma"])):
        with pytest.raises(ConfigError, match=r"plugin 'emma' is not installed.*'ema'"):
            configured(config, plugins)


def test_a_wrong_setting_says_where() -> None:
    with pytest.raises(ConfigError) as caught:
        configured({"plugins": {"mine": {"bits": 5}}}, [spec("mine", config=Bits)])
    assert "'bits' must be in [4, 8] (got 5) @ plugins.mine.bits" == str(caught.value)


def test_conflicts_are_found_before_anything_is_imported() -> None:
    with pytest.raises(ConfigError, match="'a' and 'b' both claim 'predictor'"):
        configured(None, [spec("a", claims={"predictor"}), spec("b", claims={"predictor"})])


def test_confidence_needs_a_dynamics_model() -> None:
    config = {"phases": {"predict": {"confidence": 0.5}}}
    with pytest.raises(ConfigError) as caught:
        configured(config)
    assert (
        "confidence needs a dynamics model, and no enabled plugin claims 'dynamics'; "
        "remove the setting or enable such a plugin @ phases.predict.confidence"
    ) == str(caught.value)
    assert ["d"] == names(config, [spec("d", claims={"dynamics"})])


def test_whoever_builds_model_and_data_comes_along() -> None:
    config = {
        "model": {"name": "builtin:byte-gpt"},
        "data": {"name": "builtin:python-stdlib"},
    }
    assert ["builtin-models", "builtin-data"] == names(config)


def test_a_strangers_scheme_is_asked_for_by_name() -> None:
    zoo = spec("zoo", schemes={"model:zoo"}, options={"model:cat": Bits})
    config: dict[str, Any] = {"model": {"name": "zoo:cat", "options": {"bits": 4}}}
    assert ["zoo"] == names(config, [zoo])
    config["model"]["options"] = {"bits": 3}
    with pytest.raises(ConfigError, match=r"\(got 3\) @ model\.options\.bits"):
        configured(config, [zoo])
    config["model"] = {"name": "zoo:cart"}
    with pytest.raises(ConfigError) as caught:
        configured(config, [zoo])
    assert ("'zoo' has no model 'cart' (did you mean 'cat'?); there is cat @ model.name") == str(
        caught.value
    )


def test_a_scheme_nobody_builds_lists_what_there_is() -> None:
    with pytest.raises(PluginError, match=r"no installed plugin builds 'nowhere:'.*builtin"):
        configured({"model": {"name": "nowhere:byte-gpt"}})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("builtin:byte-gpt", ("builtin", "byte-gpt")),
        ("my.package:factory", ("", "my.package:factory")),
        ("module:Class.method", ("", "module:Class.method")),
        ("hub:org/model", ("hub", "org/model")),
        ("", ("", "")),
        ("plain", ("", "plain")),
    ],
)
def test_names_split_into_scheme_and_rest(name: str, expected: tuple[str, str]) -> None:
    assert expected == split_name(name)


def test_a_plugin_that_is_enabled_is_created_with_its_settings() -> None:
    from support import tiny_trainer

    mine = stranger(plugin_with(), "mine", config=Bits)
    trainer, _ = tiny_trainer({"plugins": {"mine": {"bits": 4}}}, [mine])
    with trainer:
        assert Bits(bits=4) == trainer.hooks.plugins["mine"].config
