"""The converter of LLaMA-Factory's configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_toolkit.foreign import Converter

from . import trainers

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source

SIGNS = frozenset(
    {
        "cutoff_len",
        "finetuning_type",
        "lora_target",
        "model_name_or_path",
        "pure_bf16",
        "quantization_bit",
        "stage",
        "template",
    }
)
"""Top-level keys that identify LLaMA-Factory's configurations."""
KEYS = trainers.TRAINER
_SWITCHES = {"use_muon": "muon", "use_adam_mini": "adam-mini", "use_apollo": "apollo"}
_DATA = "goes with data.name: write the set as chats, and name it as jsonl:FILE; see {}"
_NOTES = {
    "stage": "no counterpart; the loss is yours: docs/own-task.md",
    "do_train": "neaptide run trains",
    "do_eval": "eval.every evaluates during a run",
    "do_predict": "neaptide sample writes text",
    "dataset": _DATA.format("docs/hugging-face.md"),
    "dataset_dir": _DATA.format("docs/hugging-face.md"),
    "eval_dataset": _DATA.format("data.options.validation"),
    "template": "the tokenizer's template counts; data.options.chat_template names a file",
    "cutoff_len": _DATA.format("data.options.length"),
    "packing": _DATA.format("data.options.pack"),
    "val_size": _DATA.format("data.options.validation"),
    "max_samples": "no counterpart; cut the file",
    "overwrite_cache": "the cache follows the data and the tokenizer",
    "preprocessing_num_workers": _DATA.format("data.options.workers"),
    "dataloader_num_workers": "samples are read ahead by a thread",
    "plot_loss": "neaptide report draws the loss",
    "overwrite_output_dir": "a run never overwrites another",
    "save_only_model": "checkpoints are always complete; neaptide export writes the model",
    "save_strategy": "run.checkpoint_every",
    "eval_strategy": "eval.every",
    "per_device_eval_batch_size": "validation has the batches of training",
    "report_to": trainers.LOGGED,
    "ddp_timeout": trainers.MANY,
    "deepspeed": trainers.MANY,
    "fsdp": trainers.MANY,
    "resume_from_checkpoint": "neaptide run my.toml --resume auto",
    "quantization_method": "the plugin lora has int8 and nf4 of its own",
    "use_galore": "the plugin apollo projects gradients, with less memory",
    "use_badam": "no counterpart",
    "loraplus_lr_ratio": "no counterpart",
    "additional_target": "no counterpart; plugins.lora.targets names linear layers",
    "freeze_trainable_layers": "no counterpart; freeze parameters where you build the model",
    "freeze_trainable_modules": "no counterpart; freeze parameters where you build the model",
    "use_unsloth": "fused-layers and flash-attention are plugins",
    "upcast_layernorm": "norms are in float32 under autocast",
    "neftune_noise_alpha": "no counterpart",
}


def convert(source: Source) -> dict[str, Any]:
    """Return a configuration."""
    trainers.notes(source, _NOTES)
    if source.look("stage", str) in {"sft", "pt"}:
        source.take("stage", str)
        source.note("stage", "")
    size, parts = trainers.batch(source, KEYS, 8)
    clip = source.take(KEYS.clip, float)
    plugins: dict[str, Any] = {
        "lr-schedule": trainers.schedule(source, "lr_scheduler_type", "linear")
    }
    if parts > 1:
        plugins["gradient-accumulation"] = {"steps": parts}
    plugins |= _adapters(source)
    model, precision = _model(source, adapters="lora" in plugins)
    plugins |= precision
    if not source.take("disable_gradient_checkpointing", bool):
        plugins["activation-checkpointing"] = trainers.BLOCKS_KEPT  # LLaMA-Factory's default
    if source.look("flash_attn", str) == "fa2":
        source.take("flash_attn", str)
        plugins["flash-attention"] = {}
    source.note("flash_attn", "" if "flash-attention" in plugins else "torch chooses the kernel")
    if source.take("enable_liger_kernel", bool):
        plugins["fused-layers"] = {}
    train = {"clip_norm": 1.0 if clip is None else clip or None}
    return trainers.table(
        seed=source.take(KEYS.seed, int),
        run=trainers.run(source, KEYS),
        model=model,
        train=trainers.present(**trainers.length(source, KEYS, 3), **size, **train),
        optimizer=_optimizer(source),
        eval=trainers.evaluation(source, KEYS),
        plugins=plugins,
    )


def _optimizer(source: Source) -> dict[str, Any]:
    made = trainers.optimizer(source, "optim", "adamw_torch")
    for switch, name in _SWITCHES.items():
        if source.take(switch, bool):
            decay = made["options"].get("weight_decay", 0.0)
            made = {"name": name, "options": {"weight_decay": decay}}
            if name == "apollo":
                rank = source.take("apollo_rank", int)
                made["options"] |= trainers.present(rank=rank)
                for key in ("target", "scale", "scale_type", "update_interval", "layerwise"):
                    source.note(f"apollo_{key}", "see the options of the plugin apollo")
    return {**made, **trainers.present(lr=source.take(KEYS.lr, float))}


def _model(source: Source, *, adapters: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `[model]` and the table of `mixed-precision`."""
    model = trainers.model(source, "model_name_or_path")
    if source.take("pure_bf16", bool):
        if model and not adapters:
            options = {**model.get("options", {}), "dtype": "bfloat16"}
            return {**model, "options": options}, {}
        return model, {"mixed-precision": {"dtype": "bf16"}}
    for dtype in ("bf16", "fp16"):
        if source.take(dtype, bool):
            return model, {"mixed-precision": {"dtype": dtype}}
    return model, {}


def _adapters(source: Source) -> dict[str, Any]:
    kind = source.look("finetuning_type", str)
    bits = source.take("quantization_bit", int)
    if kind in (None, "lora"):  # the default of LLaMA-Factory
        source.take("finetuning_type", str)
        target = source.take("lora_target", str)
        names = None if target in (None, "all") else [one.strip() for one in target.split(",")]
        common = trainers.adapters(source, bits)
        rank = source.take("lora_rank", int) or 8
        flags = trainers.present(
            dora=source.take("use_dora", bool), rslora=source.take("use_rslora", bool)
        )
        alpha = {"alpha": 2 * rank}  # LLaMA-Factory's default
        return {"lora": {"r": rank, **alpha, **flags, **trainers.present(targets=names), **common}}
    if kind == "full":
        source.take("finetuning_type", str)
    else:
        source.note(
            "finetuning_type", "no counterpart; freeze parameters where you build the model"
        )
    if bits is not None:
        source.note("quantization_bit", "weights that are trained are not quantized")
    return {}


CONVERTER = Converter(convert, SIGNS)
