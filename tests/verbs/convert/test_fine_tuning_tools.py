"""From axolotl, LLaMA-Factory and torchtune: whole files, each optimizer, defaults, any values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide.config import by_name
from neaptide.config.tables import leaves
from neaptide.config.values import dotted
from neaptide.errors import NeaptideError
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins
from neaptide_verbs.convert.foreign import framework_of, translate
from neaptide_verbs.convert.trainers import OPTIMIZERS

INSTALLED = installed_plugins().usable()
AXOLOTL = """
base_model: meta-llama/Llama-3.2-1B
load_in_4bit: true
adapter: qlora
datasets:
  - path: chats/train.jsonl
    type: chat_template
    field_messages: conversation
val_set_size: 0.1
output_dir: ./outputs
sequence_len: 2048
sample_packing: true
lora_r: 32
lora_alpha: 16
lora_target_modules: [q_proj, v_proj]
wandb_project:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 2
optimizer: paged_adamw_8bit
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
logging_steps: 1
attn_implementation: flash_attention_2
liger_rms_norm: true
warmup_ratio: 0.1
evals_per_epoch: 4
special_tokens:
  pad_token: <|end_of_text|>
"""
LLAMA_FACTORY = """
model_name_or_path: /models/llama
stage: sft
do_train: true
finetuning_type: full
dataset: mine
template: llama3
cutoff_len: 2048
output_dir: saves/full
save_steps: 500
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-5
max_steps: 300
lr_scheduler_type: constant_with_warmup
warmup_steps: 20
weight_decay: 0.1
adam_beta2: 0.95
max_grad_norm: 0.0
pure_bf16: true
flash_attn: fa2
"""
TORCHTUNE = """
output_dir: /tmp/out
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 64
  lora_alpha: 128
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 512}
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /models/llama
dataset:
  _component_: torchtune.datasets.chat_dataset
  source: json
  data_files: mine.jsonl
  conversation_column: dialogue
  packed: False
shuffle: True
batch_size: 4
optimizer: {_component_: torch.optim.AdamW, fused: True, weight_decay: 0.01, lr: 3e-4}
lr_scheduler:
  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup
  num_warmup_steps: 100
epochs: 2
max_steps_per_epoch: 50
gradient_accumulation_steps: 8
metric_logger: {_component_: torchtune.training.metric_logging.TensorBoardLogger}
dtype: bf16
enable_activation_checkpointing: True
optimizer_in_bwd: False
"""
FILES = {"axolotl": AXOLOTL, "llama-factory": LLAMA_FACTORY, "torchtune": TORCHTUNE}
EXPECTED: dict[str, dict[str, Any]] = {
    "axolotl": {
        "version": 1,
        "run": {"dir": "./outputs", "log_every": 1},
        "model": {"name": "hf:meta-llama/Llama-3.2-1B", "options": {"download": True}},
        "data": {
            "name": "jsonl:chats/train.jsonl",
            "options": {
                "tokenizer": "meta-llama/Llama-3.2-1B",
                "length": 2048,
                "pack": True,
                "validation": 0.1,
                "messages": "conversation",
            },
        },
        "train": {"epochs": 2, "batch_size": 8, "clip_norm": 1.0},
        "optimizer": {"name": "adam8bit", "lr": 2e-4, "options": {"weight_decay": 0.0}},
        "plugins": {
            "lr-schedule": {"name": "cosine", "warmup": 0.1},
            "gradient-accumulation": {"steps": 4},
            "mixed-precision": {"dtype": "auto"},
            "lora": {"r": 32, "alpha": 16, "targets": ["q_proj", "v_proj"], "base": "nf4"},
            "flash-attention": {},
            "fused-layers": {},
            "activation-checkpointing": {"interval": 1},
        },
    },
    "llama-factory": {
        "version": 1,
        "run": {"dir": "saves/full", "checkpoint_every": 500},
        "model": {"name": "hf:/models/llama", "options": {"dtype": "bfloat16"}},
        "train": {"steps": 300, "batch_size": 8},
        "optimizer": {
            "name": "adamw",
            "lr": 1e-5,
            "options": {"weight_decay": 0.1, "betas": [0.9, 0.95]},
        },
        "plugins": {
            "lr-schedule": {"name": "constant", "warmup": 20.0},
            "gradient-accumulation": {"steps": 8},
            "activation-checkpointing": {"interval": 1},
            "flash-attention": {},
        },
    },
    "torchtune": {
        "version": 1,
        "run": {"dir": "/tmp/out"},
        "model": {"name": "hf:/models/llama"},
        "data": {
            "name": "jsonl:mine.jsonl",
            "options": {
                "tokenizer": "/models/llama",
                "length": 512,
                "pack": False,
                "shuffle": True,
                "messages": "dialogue",
            },
        },
        "train": {"steps": 100, "batch_size": 32},
        "optimizer": {"name": "adamw", "lr": 3e-4, "options": {"weight_decay": 0.01}},
        "plugins": {
            "lr-schedule": {"name": "cosine", "warmup": 100},
            "gradient-accumulation": {"steps": 8},
            "lora": {
                "r": 64,
                "alpha": 128,
                "targets": ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
                "base": "bf16",
            },
            "activation-checkpointing": {"interval": 1},
            "tensorboard": {},
        },
    },
}


def settings_of(framework: str) -> dict[str, Any]:
    settings: dict[str, Any] = by_name("yaml").parse(FILES[framework])
    return settings


def table_of(framework: str, settings: dict[str, Any]) -> dict[str, Any]:
    table = translate(framework, settings, INSTALLED).table
    configured(table)
    return table


@pytest.mark.parametrize("framework", FILES)
def test_a_whole_file_becomes_a_configuration(framework: str) -> None:
    assert EXPECTED[framework] == table_of(framework, settings_of(framework))


@pytest.mark.parametrize("framework", FILES)
def test_a_file_is_recognized(framework: str) -> None:
    assert framework == framework_of(settings_of(framework))


def remarks_on(framework: str, settings: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    remarks = translate(framework, settings, INSTALLED).remarks
    return {remark.key: (remark.carried, remark.text) for remark in remarks}


def test_what_differs_and_what_is_left_out_is_said() -> None:
    remarks = remarks_on("axolotl", settings_of("axolotl"))
    left_out = {key for key, (carried, _) in remarks.items() if not carried}
    assert {"tf32", "evals_per_epoch", "special_tokens.pad_token"} == left_out
    assert "paged" in remarks["optimizer"][1]
    assert "float32" in remarks["bf16"][1]
    several = remarks_on("llama-factory", {"deepspeed": "ds_z3_config.json", "use_badam": True})
    assert "layer-streaming" in several["deepspeed"][1]
    assert (False, "no counterpart") == several["use_badam"]
    in_backward = remarks_on("torchtune", {"optimizer_in_bwd": True})
    assert "in_backward" in in_backward["optimizer_in_bwd"][1]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("framework", "key"), [("axolotl", "optimizer"), ("llama-factory", "optim")]
)
def test_an_optimizer_has_its_counterpart(framework: str, key: str, name: str) -> None:
    table = table_of(framework, {key: name, "weight_decay": 0.1, "learning_rate": 1e-3})
    assert OPTIMIZERS[name] == table["optimizer"]["name"]
    assert 0.1 == table["optimizer"]["options"]["weight_decay"]


@pytest.mark.parametrize(
    ("framework", "settings", "section", "key", "expected"),
    [
        ("axolotl", {}, "train", "epochs", 1),
        ("axolotl", {}, "train", "clip_norm", 1.0),
        ("axolotl", {"max_steps": -1, "num_epochs": 0.4}, "train", "epochs", 1),
        ("llama-factory", {}, "train", "epochs", 3),
        ("llama-factory", {}, "plugins", "lr-schedule", {"name": "linear"}),
        ("llama-factory", {"use_apollo": True, "apollo_rank": 4}, "optimizer", "name", "apollo"),
        ("llama-factory", {"optim": "lomo"}, "optimizer", "name", "adamw"),
        (
            "llama-factory",
            {"lr_scheduler_type": "constant", "warmup_steps": 5},
            "plugins",
            "lr-schedule",
            {"name": "constant"},
        ),
        (
            "llama-factory",
            {"quantization_bit": 8, "lora_target": "q_proj, v_proj"},
            "plugins",
            "lora",
            {"r": 8, "alpha": 16, "targets": ["q_proj", "v_proj"], "base": "int8"},
        ),
        (
            "torchtune",
            {"lr_scheduler": {"_component_": "x.y"}},
            "plugins",
            "lr-schedule",
            {"name": "constant"},
        ),
        (
            "torchtune",
            {"optimizer": {"_component_": "bitsandbytes.optim.PagedAdamW8bit", "lr": 0.1}},
            "optimizer",
            "name",
            "adam8bit",
        ),
    ],
)
def test_a_default_is_that_of_the_tool(
    framework: str, settings: dict[str, Any], section: str, key: str, expected: object
) -> None:
    assert expected == table_of(framework, settings)[section][key]


KEYS = sorted({str(key) for name in FILES for path in leaves(settings_of(name)) for key in path})
WORDS = ["auto", "adamw_8bit", "cosine", "lora", "full", "a/b", ""]
NUMBERS = [0, 1, 3, -2, 0.0, 0.5, 1e-5, 2**63, 10**400, 1e308, float("inf")]
VALUES: Any = st.recursive(
    st.sampled_from([*WORDS, None, True, False, *NUMBERS]),
    lambda inner: (
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=4) | st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("framework", FILES)
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5), whole=st.booleans())
def test_anything_is_converted_or_refused_in_lines(
    framework: str,
    changes: dict[str, Any],
    whole: bool,  # noqa: FBT001 - hypothesis draws it
) -> None:
    settings = {**(settings_of(framework) if whole else {}), **changes}
    try:
        translation = translate(framework, settings, INSTALLED)
        configured(translation.table)
    except NeaptideError as error:
        lines = str(error).split("\n")
    else:
        lines = [remark.text for remark in translation.remarks]
        assert {remark.key for remark in translation.remarks} <= set(map(dotted, leaves(settings)))
    assert [] == [line for line in lines if len(line.splitlines()) != 1]
