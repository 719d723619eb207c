"""The converter of DeepSpeed configurations. Plugins convert the keys of their own features."""

from __future__ import annotations

from typing import Any

from neaptide_toolkit.foreign import Converter, Source

_OPTIONS: dict[str, dict[str, Any]] = {
    "adam": {"betas": list[float], "eps": float, "weight_decay": float, "amsgrad": bool},
    "adamw": {"betas": list[float], "eps": float, "weight_decay": float, "amsgrad": bool},
    "adagrad": {"eps": float, "weight_decay": float},
    "sgd": {"momentum": float, "weight_decay": float, "nesterov": bool, "dampening": float},
}
SIGNS = frozenset(
    {
        "bf16",
        "fp16",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "scheduler",
        "steps_per_print",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "zero_optimization",
    }
)
"""Top-level keys that identify DeepSpeed's configurations, because no other framework has them."""
_TO_A_PEAK = ("warmuplr", "warmupdecaylr")
"""Schedulers that set the learning rate themselves; the optimizer's rate is ignored."""
_OF_A_LENGTH = (*_TO_A_PEAK, "warmupcosinelr")
_NONE = "no counterpart in this version"
_NOTES = {
    "train_micro_batch_size_per_gpu": "follows from the batch size and the number of its parts",
    "zero_optimization": f"sharding has {_NONE}",
    "zero_allow_untested_optimizer": "any optimizer of torch.optim may be named",
    "zero_force_ds_cpu_optimizer": "the optimizer is the same wherever its state is",
    "amp": f"Apex has {_NONE}; torch's own autocast is a plugin",
    "wall_clock_breakdown": "the seconds of each step are in steps.csv of the run directory",
    "csv_monitor": "steps.csv is always written to the run directory",
    "tensorboard": "no counterpart; metrics.jsonl is written to the run directory",
    "wandb": "no counterpart; metrics.jsonl is written to the run directory",
    "comet": "no counterpart; metrics.jsonl is written to the run directory",
    "flops_profiler": "no counterpart; operations are not counted",
    "optimizer": "no counterpart; [optimizer] takes any class of torch.optim by its name",
    "checkpoint": "checkpoints are always complete and checked by digest",
    "data_types": f"the dtype of accumulation has {_NONE}",
    "communication_data_type": f"several processes have {_NONE}",
    "prescale_gradients": f"several processes have {_NONE}",
    "gradient_predivide_factor": f"several processes have {_NONE}",
    "sparse_gradients": f"several processes have {_NONE}",
    "elasticity": f"several processes have {_NONE}",
    "autotuning": "no counterpart; it measures DeepSpeed's settings",
    "dump_state": "no counterpart; `neaptide config show` prints the whole configuration",
}


def convert(source: Source) -> dict[str, Any]:
    """Return the core's sections of a configuration."""
    for path, text in _NOTES.items():
        source.note(path, text)
    optimizer, train = _optimizer(source), _train(source)
    scheduler = (source.look("scheduler.type", str) or "").lower()
    if scheduler in _OF_A_LENGTH:
        train |= _present(steps=source.take("scheduler.params.total_num_steps", int))
    if scheduler in _TO_A_PEAK:
        optimizer["lr"] = _peak(source, optimizer.get("lr"))
    sections: dict[str, Any] = {
        "run": _present(log_every=source.take("steps_per_print", int)),
        "train": train,
        "optimizer": optimizer,
    }
    return {
        **_present(seed=source.take("seed", int)),
        **{name: section for name, section in sections.items() if section},
    }


def _train(source: Source) -> dict[str, Any]:
    size = source.take("train_batch_size", int)
    micro = source.look("train_micro_batch_size_per_gpu", int)
    if size and micro:
        _compare(source, size, micro, source.look("gradient_accumulation_steps", int))
    if size is None and micro is not None:
        source.take("train_micro_batch_size_per_gpu", int)
        size = micro * (source.take("gradient_accumulation_steps", int) or 1)
        text = f"train.batch_size = {size} is the batch of one GPU in an update"
        source.note("train_micro_batch_size_per_gpu", text)
    clip = source.take("gradient_clipping", float)
    return _present(batch_size=size, clip_norm=clip or None)


def _compare(source: Source, size: int, micro: int, parts: int | None) -> None:
    """Compare the batch size with the part of one GPU (micro-batch size x accumulation steps)."""
    product = micro * (parts or 1)
    if product and size % product:
        by = f" x gradient_accumulation_steps {parts}" if parts else ""
        source.refuse(
            "train_batch_size",
            f"{size} is not a multiple of train_micro_batch_size_per_gpu {micro}{by}; change one",
        )
    elif parts and size > product:
        text = f"in DeepSpeed {size // product} GPUs share the batch; here one GPU has all of it"
        source.note("train_batch_size", text)


def _optimizer(source: Source) -> dict[str, Any]:
    kind = source.look("optimizer.type", str)
    name = (kind or "").lower()
    if name == "adam" and source.look("optimizer.params.adam_w_mode", bool) is not False:
        name = "adamw"
        source.note("optimizer.type", "DeepSpeed's Adam decays weights as AdamW does: adamw")
    if name not in _OPTIONS:
        return {}
    source.take("optimizer.type", str)
    for flag in ("adam_w_mode", "torch_adam", "fused", "set_grad_none"):
        source.take(f"optimizer.params.{flag}", bool)
    options = {
        option: source.take(f"optimizer.params.{option}", type_)
        for option, type_ in _OPTIONS[name].items()
    }
    if options["weight_decay"] is None and not source.is_auto("optimizer.params.weight_decay"):
        options["weight_decay"] = (
            0.0  # DeepSpeed's default, which differs from some defaults of torch
        )
    if source.look("optimizer.params.bias_correction", bool):
        source.take("optimizer.params.bias_correction", bool)
    source.note("optimizer.params", f"not an option of {name} here")
    lr = source.take("optimizer.params.lr", float)
    return {**_present(name=name, lr=lr), "options": _present(**options)}


def _peak(source: Source, lr: float | None) -> float:
    """Return the highest learning rate of a schedule that has a warmup."""
    peak = source.take("scheduler.params.warmup_max_lr", float)
    if peak is None and source.look("optimizer.params.lr", float) is None:
        return 1e-3
    if peak is None:
        text = "without warmup_max_lr DeepSpeed's schedule rises to 0.001, not to this rate"
        source.note("optimizer.params.lr", text)
        return 1e-3
    if lr is not None and lr != peak:
        text = f"the schedule's warmup_max_lr, {peak}, is used instead"
        source.note("optimizer.params.lr", text)
    return peak


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


CONVERTER = Converter(convert, SIGNS)
