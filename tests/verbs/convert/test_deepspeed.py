"""From DeepSpeed: what has a counterpart is in the table, all else is in the remarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide.config.tables import at, leaves
from neaptide.config.values import dotted
from neaptide.errors import ConfigError, NeaptideError, PluginError
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins
from neaptide.plugin import PluginSpec
from neaptide_verbs.convert.foreign import translate

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source

INSTALLED = installed_plugins().usable()
HUGGING_FACE: dict[str, Any] = {
    "fp16": {
        "enabled": "auto",
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": True},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 3e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": 0,
            "warmup_max_lr": 3e-5,
            "warmup_num_steps": 500,
            "total_num_steps": 10_000,
            "warmup_type": "linear",
        },
    },
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "activation_checkpointing": {"partition_activations": False, "number_checkpoints": 4},
    "gradient_accumulation_steps": 4,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_clipping": 1.0,
    "steps_per_print": 2000,
    "wall_clock_breakdown": False,
    "seed": 42,
}


def table_of(settings: dict[str, Any]) -> dict[str, Any]:
    return translate("deepspeed", settings, INSTALLED).table


def remarks_on(settings: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    remarks = translate("deepspeed", settings, INSTALLED).remarks
    return {remark.key: (remark.carried, remark.text) for remark in remarks}


def test_a_whole_configuration() -> None:
    assert {
        "version": 1,
        "seed": 42,
        "run": {"log_every": 2000},
        "train": {"batch_size": 32, "clip_norm": 1.0, "steps": 10_000},
        "optimizer": {
            "name": "adamw",
            "lr": 3e-5,
            "options": {"betas": [0.9, 0.95], "eps": 1e-8},
        },
        "plugins": {
            "gradient-accumulation": {"steps": 4},
            "layer-streaming": {},
            "lr-schedule": {"name": "linear", "warmup": 500},
            "mixed-precision": {"dtype": "bf16"},
        },
    } == table_of(HUGGING_FACE)


def test_all_else_is_remarked_on() -> None:
    auto = (False, '"auto" is filled in by the Hugging Face Trainer; write the value yourself')
    remarks = remarks_on(HUGGING_FACE)
    assert auto == remarks["fp16.enabled"]
    assert auto == remarks["optimizer.params.weight_decay"]
    carried = {key for key, (was_carried, _) in remarks.items() if was_carried}
    offloaded = "zero_optimization.offload_optimizer.device"
    assert {"bf16.enabled", "train_micro_batch_size_per_gpu", offloaded} == carried
    assert {
        "fp16.enabled",
        "fp16.loss_scale",
        "fp16.loss_scale_window",
        "fp16.initial_scale_power",
        "fp16.hysteresis",
        "fp16.min_loss_scale",
        "optimizer.params.weight_decay",
        "zero_optimization.stage",
        "activation_checkpointing.number_checkpoints",
        "wall_clock_breakdown",
    } == remarks.keys() - carried
    assert "sharding has no counterpart" in remarks["zero_optimization.stage"][1]


def test_it_is_a_configuration() -> None:
    config, ordered = configured(table_of(HUGGING_FACE))
    assert 32 == config.train.batch_size
    plugins = {"gradient-accumulation", "layer-streaming", "lr-schedule"}
    assert plugins | {"mixed-precision"} == {spec.name for spec in ordered}


@pytest.mark.parametrize(
    ("settings", "section", "expected"),
    [
        ({"train_batch_size": 64}, "train", {"batch_size": 64}),
        ({"train_batch_size": 6.4e1}, "train", {"batch_size": 64}),
        ({"gradient_clipping": 0}, "train", None),
        ({"gradient_clipping": "auto"}, "train", None),
        ({"seed": None}, "seed", None),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 16},
            "plugins",
            {"gradient-accumulation": {"steps": 4}},
        ),
        ({"gradient_accumulation_steps": 1}, "plugins", None),
        (
            {"optimizer": {"type": "Adam", "params": {"lr": 0.1}}},
            "optimizer",
            {"name": "adamw", "lr": 0.1, "options": {"weight_decay": 0.0}},
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}},
            "optimizer",
            {"name": "adam", "options": {"weight_decay": 0.0}},
        ),
        (
            {"optimizer": {"type": "SGD", "params": {"momentum": 0.9, "weight_decay": 0.1}}},
            "optimizer",
            {"name": "sgd", "options": {"momentum": 0.9, "weight_decay": 0.1}},
        ),
        ({"optimizer": {"type": "Lamb", "params": {"lr": 0.1}}}, "optimizer", None),
        (
            {"scheduler": {"type": "WarmupLR", "params": {}}},
            "plugins",
            {"lr-schedule": {"name": "constant", "warmup": 1000}},
        ),
        ({"scheduler": {"type": "WarmupLR", "params": {}}}, "optimizer", {"lr": 1e-3}),
        (
            {
                "optimizer": {"type": "AdamW", "params": {"lr": 0.2, "weight_decay": 0.1}},
                "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 5}},
            },
            "optimizer",
            {"name": "adamw", "lr": 0.2, "options": {"weight_decay": 0.1}},
        ),
        ({"scheduler": {"type": "OneCycle", "params": {"a": 1}}}, "plugins", None),
        ({"activation_checkpointing": {}}, "plugins", None),
        (
            {"activation_checkpointing": {"number_checkpoints": 4}},
            "plugins",
            {"activation-checkpointing": {}},
        ),
        (
            {"zero_optimization": {"offload_param": {"device": "cpu", "pin_memory": True}}},
            "plugins",
            {"layer-streaming": {}},
        ),
        (
            {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/nvme"}}},
            "plugins",
            {"layer-streaming": {"tier": "disk", "path": "/nvme"}},
        ),
        ({"zero_optimization": {"offload_optimizer": {"device": "none"}}}, "plugins", None),
        (
            {"fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 50}},
            "plugins",
            {
                "mixed-precision": {
                    "dtype": "fp16",
                    "initial_scale": 256.0,
                    "growth_interval": 50,
                }
            },
        ),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": False}}, "plugins", None),
        (
            {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
            "plugins",
            {"mixed-precision": {"dtype": "bf16"}},
        ),
    ],
)
def test_a_section(settings: dict[str, Any], section: str, expected: Any) -> None:
    table = table_of(settings)
    assert expected == table.get(section)
    configured(table)


@pytest.mark.parametrize(
    ("settings", "key", "carried", "words"),
    [
        ({"optimizer": {"type": "Lamb", "params": {}}}, "optimizer.type", False, "torch.optim"),
        ({"scheduler": {"type": "OneCycle"}}, "scheduler.type", False, "[plugins.lr-schedule]"),
        ({"scheduler": {"type": "WarmupLR"}}, "scheduler.type", True, "logarithmic"),
        (
            {
                "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
                "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.2}},
            },
            "optimizer.params.lr",
            True,
            "warmup_max_lr, 0.2, is used",
        ),
        (
            {
                "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
                "scheduler": {"type": "WarmupLR"},
            },
            "optimizer.params.lr",
            True,
            "rises to 0.001",
        ),
        ({"optimizer": {"type": "Adam"}}, "optimizer.type", True, "decays weights as AdamW"),
        (
            {"optimizer": {"type": "Adam", "params": {"freeze_step": 3}}},
            "optimizer.params.freeze_step",
            False,
            "not an option of adamw here",
        ),
        (
            {"fp16": {"enabled": True, "loss_scale": 128}},
            "fp16.loss_scale",
            False,
            "always dynamic",
        ),
        (
            {
                "train_batch_size": 48,
                "train_micro_batch_size_per_gpu": 3,
                "gradient_accumulation_steps": 4,
            },
            "train_batch_size",
            True,
            "4 GPUs share the batch",
        ),
        ({"unheard_of": [1]}, "unheard_of", False, "no counterpart"),
        ({"odd key": {"x.y": 1}}, '"odd key"."x.y"', False, "no counterpart"),
    ],
)
def test_a_remark(settings: dict[str, Any], key: str, carried: bool, words: str) -> None:  # noqa: FBT001 - an example's column
    was_carried, text = remarks_on(settings)[key]
    assert carried == was_carried
    assert words in text


def test_values_of_a_wrong_type_are_all_reported() -> None:
    settings = {
        "train_batch_size": "64",
        "optimizer": {"type": "AdamW", "params": {"betas": [0.9, "x"]}},
        "fp16": {"enabled": 1},
    }
    with pytest.raises(ConfigError) as caught:
        table_of(settings)
    assert sorted(
        [
            'expected an integer (got "64", a string) @ train_batch_size',
            'expected a number (got "x", a string) @ optimizer.params.betas[1]',
            "expected true or false (got 1, an integer) @ fp16.enabled",
        ]
    ) == sorted(caught.value.problems)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {
                "train_batch_size": 10,
                "train_micro_batch_size_per_gpu": 3,
                "gradient_accumulation_steps": 4,
            },
            (
                "10 is not a multiple of train_micro_batch_size_per_gpu 3 x "
                "gradient_accumulation_steps 4; change one @ train_batch_size"
            ),
        ),
        (
            {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 3},
            (
                "10 is not a multiple of train_micro_batch_size_per_gpu 3; change one "
                "@ train_batch_size"
            ),
        ),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}},
            "a disk needs a directory @ zero_optimization.offload_optimizer.nvme_path",
        ),
        ({"optimizer": "AdamW"}, 'expected a table (got "AdamW", a string) @ optimizer'),
    ],
)
def test_what_contradicts_itself_or_deepspeed_is_refused(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        table_of(settings)
    assert (problem,) == caught.value.problems


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'deepsped' \(did you mean 'deepspeed'\?\)"):
        translate("deepsped", {}, INSTALLED)


def test_a_strangers_plugin_takes_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    def convert(source: Source) -> dict[str, Any] | None:
        return {"device": source.take("zero_optimization.offload_param.device", str)}

    module = ModuleType("strangers_offload")
    module.__dict__["convert"] = convert
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = PluginSpec(
        name="offload", load="strangers:X", converts={"deepspeed": "strangers_offload:convert"}
    )
    settings = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
    translation = translate("deepspeed", settings, {"offload": spec})
    assert {"version": 1, "plugins": {"offload": {"device": "cpu"}}} == translation.table
    assert ["zero_optimization.stage"] == [remark.key for remark in translation.remarks]
    missing = attrs.evolve(spec, converts={"deepspeed": "strangers_offload:missing"})
    with pytest.raises(PluginError, match="plugin 'offload': 'strangers_offload:missing' raised"):
        translate("deepspeed", settings, {"offload": missing})


KEYS = sorted(
    {str(key) for path in leaves(HUGGING_FACE) for key in path}
    | {"cos_min_ratio", "torch_autocast", "dtype", "momentum", "initial_scale_power", "loss_scale"}
)
WORDS = ["auto", "Adam", "AdamW", "SGD", "WarmupLR", "WarmupCosineLR", "float16", "linear", ""]
SCALARS = st.sampled_from(
    [*WORDS, None, True, False, 0, 1, 4, -3, 0.0, 0.5, 2**63, 10**400, 1e308, float("inf")]
)
TABLES: Any = st.recursive(
    SCALARS,
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=6) | st.lists(inner),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(KEYS), TABLES, max_size=8))
def test_anything_is_converted_or_refused_in_lines(settings: dict[str, Any]) -> None:
    try:
        translation = translate("deepspeed", settings, INSTALLED)
        configured(translation.table)
    except NeaptideError as error:
        lines = str(error).split("\n")
    else:
        left_out = {remark.key for remark in translation.remarks if not remark.carried}
        autos = {dotted(path) for path in leaves(settings) if at(settings, path) == "auto"}
        assert autos <= left_out
        lines = [remark.text for remark in translation.remarks]
    assert [] == [line for line in lines if len(line.splitlines()) != 1]
