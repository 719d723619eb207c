"""The converter of axolotl's configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide_toolkit.foreign import Converter

from . import trainers

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source

SIGNS = frozenset(
    {
        "base_model",
        "datasets",
        "dataset_prepared_path",
        "load_in_4bit",
        "lora_target_linear",
        "micro_batch_size",
        "num_epochs",
        "sample_packing",
        "sequence_len",
        "special_tokens",
        "val_set_size",
    }
)
"""Top-level keys that identify axolotl's configurations."""
KEYS = attrs.evolve(trainers.TRAINER, micro_batch="micro_batch_size", epochs="num_epochs")
_CHAT, _TEXT = {"chat_template"}, {"completion", "pretrain"}
_LIGER = (
    "liger_rms_norm",
    "liger_layer_norm",
    "liger_glu_activation",
    "liger_swiglu",
    "liger_rope",
)
_FLASH = {"flash_attention_2", "flash_attention_3", "flash_attention"}
_WATCHED = "the plugin divergence-monitor watches the loss"
_NOTES = {
    "strict": "unknown keys are always refused",
    "datasets": "one set of chats (chat_template) or of texts (completion) is converted; write "
    "others as chats, and name them in data.name",
    "test_datasets": "name them in data.options.validation",
    "chat_template": "the tokenizer's template counts; data.options.chat_template names a file",
    "dataset_prepared_path": "tokenized data are kept in the user's cache; data.options.cache",
    "pad_to_sequence_len": "samples are packed, or padded to the longest of a batch",
    "eval_sample_packing": "validation is packed as training is",
    "train_on_inputs": "of a chat, the turns of the assistant count; of a text, all",
    "group_by_length": "not needed for packed samples",
    "tf32": "torch.set_float32_matmul_precision in your own loop",
    "deepspeed": trainers.MANY,
    "fsdp": trainers.MANY,
    "fsdp_config": trainers.MANY,
    "evals_per_epoch": "eval.every is a number of updates",
    "saves_per_epoch": "run.checkpoint_every is a number of updates",
    "early_stopping_patience": "no counterpart; best-checkpoint keeps the best one",
    "resume_from_checkpoint": "neaptide run my.toml --resume auto",
    "loss_watchdog_threshold": _WATCHED,
    "loss_watchdog_patience": _WATCHED,
    "special_tokens": "set them in the tokenizer, and save it",
    "plugins": "no counterpart; see neaptide plugins list",
    "hub_model_id": "neaptide export writes a folder for the hub",
    "model_type": "the architecture is that of the model's config.json",
    "tokenizer_type": "the tokenizer is that of its folder",
    "torch_compile": "docs/compile.md",
    "rl": "the loss of a preference is yours: docs/own-task.md",
    **{
        f"wandb_{name}": trainers.LOGGED
        for name in ("project", "entity", "watch", "name", "log_model", "run_id")
    },
}


def convert(source: Source) -> dict[str, Any]:
    """Return a configuration."""
    trainers.notes(source, _NOTES)
    size, parts = trainers.batch(source, KEYS, 1)
    clip = source.take(KEYS.clip, float)
    train = {
        **trainers.length(source, KEYS, 1),
        **size,
        "clip_norm": 1.0 if clip is None else clip or None,
    }
    optimizer = trainers.optimizer(source, "optimizer", "adamw_torch_fused")
    model = trainers.model(source, "base_model")
    plugins: dict[str, Any] = {"lr-schedule": trainers.schedule(source, "lr_scheduler", "cosine")}
    floor = source.take("cosine_min_lr_ratio", float)
    if floor and plugins["lr-schedule"]["name"] == "cosine":
        plugins["lr-schedule"]["floor"] = floor
    if parts > 1:
        plugins["gradient-accumulation"] = {"steps": parts}
    plugins |= _precision(source) | _adapters(source) | _kernels(source)
    if source.take("gradient_checkpointing", bool) or source.look("gradient_checkpointing", str):
        plugins["activation-checkpointing"] = trainers.BLOCKS_KEPT
        source.note("gradient_checkpointing_kwargs", "inputs of blocks are kept, exactly")
        source.note("gradient_checkpointing", "")
        source.taken.add("gradient_checkpointing")
    return trainers.table(
        seed=source.take(KEYS.seed, int),
        run=trainers.run(source, KEYS),
        model=model,
        data=_data(source, model),
        train=trainers.present(**train),
        optimizer={**optimizer, **trainers.present(lr=source.take(KEYS.lr, float))},
        eval=trainers.evaluation(source, KEYS),
        plugins=plugins,
    )


def _precision(source: Source) -> dict[str, Any]:
    """Return the table of `mixed-precision`; axolotl's `auto` is bf16 where a GPU has it."""
    for key, dtype in (("bf16", "bf16"), ("fp16", "fp16")):
        given = source.settings.get(key)
        if given in (None, False):
            source.taken.add(key)
            continue
        source.taken.add(key)
        text = "weights that are trained stay in float32; axolotl holds them in 16 bits"
        source.note(key, text)
        return {"mixed-precision": {"dtype": "auto" if given == "auto" else dtype}}
    return {}


def _adapters(source: Source) -> dict[str, Any]:
    bits = [number for number in (4, 8) if source.take(f"load_in_{number}bit", bool)]
    kind = source.look("adapter", str)
    if kind not in ("lora", "qlora"):
        source.note("adapter", "no counterpart; the plugin lora trains adapters")
        for number in bits:
            source.note(f"load_in_{number}bit", "weights that are trained are not quantized")
        return {}
    source.take("adapter", str)
    targets = source.take("lora_target_modules", list[str])
    everything = source.take("lora_target_linear", bool)
    if targets is None and not everything:
        source.note("adapter", "without lora_target_modules all linear layers get an adapter")
    return {
        "lora": {
            **trainers.present(
                r=source.take("lora_r", int),
                targets=None if everything else targets,
                dora=source.take("peft_use_dora", bool),
                rslora=source.take("peft_use_rslora", bool),
            ),
            **trainers.adapters(source, bits[0] if bits else None),
        }
    }


def _kernels(source: Source) -> dict[str, Any]:
    """Return the plugins that axolotl's switches of kernels stand for."""
    found: dict[str, Any] = {}
    flash = (
        source.take("flash_attention", bool) or source.look("attn_implementation", str) in _FLASH
    )
    if flash:
        found["flash-attention"] = {}
        source.taken.add("attn_implementation")
    for switch in ("xformers_attention", "sdp_attention", "s2_attention"):
        source.note(switch, "the plugin flash-attention chooses the kernel")
    if any([source.take(name, bool) for name in _LIGER]):  # noqa: C419 - each one is taken
        found["fused-layers"] = {}
    for name in ("liger_fused_linear_cross_entropy", "liger_cross_entropy", "cut_cross_entropy"):
        source.note(name, "chunked_cross_entropy of neaptide_kernels in your own loss")
    return found


def _data(source: Source, model: dict[str, Any]) -> dict[str, Any]:
    sets: Any = source.look("datasets", list)
    first: dict[str, Any] = sets[0] if sets and isinstance(sets[0], dict) else {}
    kind, path = first.get("type"), first.get("path")
    if not sets or len(sets) > 1 or kind not in _CHAT | _TEXT or not isinstance(path, str):
        for key in ("sequence_len", "sample_packing", "val_set_size"):
            source.note(key, "goes with data.name: length, pack and validation of data.options")
        return {}
    tokenizer = source.take("tokenizer_config", str) or model.get("name", "hf:").removeprefix("hf:")
    share = source.look("val_set_size", float)
    if share is not None and 0 < share < 1:
        source.take("val_set_size", float)
    else:
        source.note("val_set_size", "a share of the documents between 0 and 1")
        share = None
    files = next((one for one in ("jsonl", "json", "parquet") if path.endswith(f".{one}")), None)
    scheme = {"json": "jsonl"}.get(files or "", files) or "hf"
    field = first.get("field_messages") if kind in _CHAT else first.get("field")
    source.taken.add("datasets")
    source.note("datasets", "other keys of the set than its path, type and field are left out")
    options = trainers.present(
        tokenizer=tokenizer or None,
        length=source.take("sequence_len", int),
        pack=bool(source.take("sample_packing", bool)),
        validation=share,
        download=True if scheme == "hf" and trainers.is_id(path) else None,
        messages=field if kind in _CHAT else None,
        text=field if kind in _TEXT else None,
    )
    return {"name": f"{scheme}:{path}", "options": options}


CONVERTER = Converter(convert, SIGNS)
