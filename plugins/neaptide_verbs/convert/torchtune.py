"""The converter of torchtune's configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_toolkit.foreign import Converter

from . import trainers

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source

SIGNS = frozenset(
    {
        "checkpointer",
        "enable_activation_checkpointing",
        "enable_activation_offloading",
        "log_peak_memory_stats",
        "max_steps_per_epoch",
        "metric_logger",
        "optimizer_in_bwd",
        "resume_from_checkpoint",
    }
)
"""Top-level keys of torchtune's configurations."""
KEYS = trainers.Keys(
    micro_batch="batch_size",
    parts="gradient_accumulation_steps",
    epochs="epochs",
    steps="max_steps_per_epoch",
    lr="optimizer.lr",
    clip="clip_grad_norm",
    seed="seed",
    log_every="log_every_n_steps",
    run_dir="output_dir",
)
_PROJECTIONS = {"output_proj": "o_proj"}
_OF_MLP = ("gate_proj", "up_proj", "down_proj")
_OF_TORCH = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd"}
_IN_8_BITS = {"AdamW8bit": "adam8bit", "PagedAdamW8bit": "adam8bit", "Lion8bit": "lion8bit"}
_COSINE = "get_cosine_schedule_with_warmup"
_LOGGERS = {"TensorBoardLogger": "tensorboard"}
_SETS = {"text_completion_dataset": "text", "chat_dataset": "messages"}
_SCHEMES = {"json": "jsonl", "parquet": "parquet"}
_NOTES = {
    "model": "the architecture is that of the config.json in the checkpoint's folder",
    "tokenizer": "the tokenizer is that of the model's folder",
    "checkpointer": "a run saves to run.dir; neaptide export writes files of transformers",
    "dataset": "chat_dataset and text_completion_dataset with files are converted; write others as "
    "chats, and name them in data.name",
    "shuffle": "data.options.shuffle",
    "loss": "the model's own; chunked_cross_entropy of neaptide_kernels in your own loss",
    "compile": "docs/compile.md",
    "device": "train.device is auto",
    "log_peak_memory_stats": "peak bytes of each phase are in summary.json",
    "metric_logger": trainers.LOGGED,
    "profiler": "the plugin profiler",
    "resume_from_checkpoint": "neaptide run my.toml --resume auto",
    "save_adapter_weights_only": "neaptide export writes the adapters",
    "enable_activation_offloading": 'layer-streaming with inputs = "host" keeps inputs in RAM',
    "optimizer_in_bwd": 'layer-streaming with update = "in_backward" does so',
    "optimizer": "not an option here",
    "lr_scheduler": "see [plugins.lr-schedule]",
}


def convert(source: Source) -> dict[str, Any]:
    """Return a configuration."""
    trainers.notes(source, _NOTES)
    size, parts = trainers.batch(source, KEYS, 1)
    dtype = source.take("dtype", str)
    plugins: dict[str, Any] = {"lr-schedule": _schedule(source)}
    if parts > 1:
        plugins["gradient-accumulation"] = {"steps": parts}
    plugins |= _adapters(source, dtype)
    if source.take("enable_activation_checkpointing", bool):
        plugins["activation-checkpointing"] = trainers.BLOCKS_KEPT
    for path in ("enable_activation_offloading", "optimizer_in_bwd", "compile"):
        if source.look(path, bool) is False:
            source.take(path, bool)
            source.note(path, "")
    logger = _LOGGERS.get(_component(source, "metric_logger"))
    if logger is not None:
        source.taken.add("metric_logger._component_")
        plugins[logger] = {}
    model = _model(source, dtype, adapters="lora" in plugins)
    return trainers.table(
        seed=source.take(KEYS.seed, int),
        run=trainers.run(source, KEYS),
        model=model,
        data=_data(source, model),
        train=trainers.present(
            **_length(source), **size, clip_norm=source.take(KEYS.clip, float) or None
        ),
        optimizer=_optimizer(source),
        plugins=plugins,
    )


def _component(source: Source, section: str) -> str:
    """Return the last part of the name of a section's component, or an empty string."""
    return (source.look(f"{section}._component_", str) or "").rpartition(".")[2]


def _length(source: Source) -> dict[str, Any]:
    epochs = source.take(KEYS.epochs, int) or 1
    steps = source.take(KEYS.steps, int)
    return {"epochs": epochs} if steps is None else {"steps": epochs * steps}


def _optimizer(source: Source) -> dict[str, Any]:
    kind = _component(source, "optimizer")
    name = (_OF_TORCH | _IN_8_BITS).get(kind)
    if name is None:
        source.note("optimizer._component_", "no counterpart; adamw in its place")
        name = "adamw"
    else:
        source.taken.add("optimizer._component_")
        if kind.startswith("Paged"):
            text = "state is not paged here; layer-streaming keeps it in RAM"
            source.note("optimizer._component_", text)
    options = trainers.present(
        weight_decay=source.take("optimizer.weight_decay", float),
        betas=source.take("optimizer.betas", list[float]),
        eps=source.take("optimizer.eps", float),
        momentum=source.take("optimizer.momentum", float) if name == "sgd" else None,
    )
    source.take("optimizer.fused", bool)
    return trainers.table(name=name, lr=source.take(KEYS.lr, float), options=options)


def _schedule(source: Source) -> dict[str, Any]:
    kind = _component(source, "lr_scheduler")
    if not kind:
        return {"name": "constant"}
    if kind != _COSINE:
        source.note("lr_scheduler._component_", "no counterpart; a constant rate in its place")
        return {"name": "constant"}
    source.taken.add("lr_scheduler._component_")
    warmup = source.take("lr_scheduler.num_warmup_steps", int)
    return {"name": "cosine", **trainers.present(warmup=warmup)}


def _adapters(source: Source, dtype: str | None) -> dict[str, Any]:
    kind = _component(source, "model")
    if not kind.startswith(("lora_", "qlora_")):
        return {}
    base = "nf4" if kind.startswith("qlora_") or source.take("model.quantize_base", bool) else None
    names = [
        _PROJECTIONS.get(name, name)
        for name in source.take("model.lora_attn_modules", list[str]) or ()
    ]
    names += _OF_MLP if source.take("model.apply_lora_to_mlp", bool) else ()
    names += ["lm_head"] if source.take("model.apply_lora_to_output", bool) else ()
    return {
        "lora": trainers.present(
            r=source.take("model.lora_rank", int) or 8,
            alpha=_alpha(source),
            dropout=source.take("model.lora_dropout", float),
            dora=source.take("model.use_dora", bool),
            targets=names or None,
            base=base or ("bf16" if dtype == "bf16" else "as-is"),
        )
    }


def _alpha(source: Source) -> int:
    """Return alpha; a fraction, which torchtune allows, is rounded with a note."""
    given = source.take("model.lora_alpha", float)
    if given is None:
        return 16
    if given != round(given):
        source.note("model.lora_alpha", f"a whole number here: {max(1, round(given))}")
    return max(1, round(given))


def _model(source: Source, dtype: str | None, *, adapters: bool) -> dict[str, Any]:
    folder = source.take("checkpointer.checkpoint_dir", str)
    if folder is None:
        return {}
    for key in ("_component_", "checkpoint_files", "model_type"):
        source.note(f"checkpointer.{key}", "the folder's files of transformers are read")
    options: dict[str, Any] = {}
    if dtype == "bf16" and not adapters:
        options["dtype"] = "bfloat16"
        text = "weights and state are bfloat16, as in torchtune; adam8bit and lion round such "
        source.note("dtype", text + "weights stochastically, torch's AdamW does not")
    return {"name": f"hf:{folder}", **trainers.table(options=options)}


def _data(source: Source, model: dict[str, Any]) -> dict[str, Any]:
    kind = _component(source, "dataset")
    files = source.look("dataset.data_files", str)
    scheme = _SCHEMES.get(source.look("dataset.source", str) or "")
    if kind not in _SETS or files is None or scheme is None or not model:
        source.note("tokenizer.max_seq_len", "goes with data.name: data.options.length")
        return {}
    for key in ("_component_", "data_files", "source"):
        source.taken.add(f"dataset.{key}")
    source.note("shuffle", "")
    field = source.take("dataset.column", str) or source.take("dataset.conversation_column", str)
    options = trainers.present(
        tokenizer=model["name"].removeprefix("hf:"),
        length=source.take("tokenizer.max_seq_len", int),
        pack=bool(source.take("dataset.packed", bool)),
        shuffle=source.take("shuffle", bool),
        **{_SETS[kind]: field},
    )
    return {"name": f"{scheme}:{files}", "options": options}


CONVERTER = Converter(convert, SIGNS)
