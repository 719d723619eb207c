"""What the settings of fine-tuning tools have in common, and what becomes of it here.

axolotl and LLaMA-Factory wrap the Trainer of transformers, so most of their keys and of their
defaults are the Trainer's. torchtune's keys have other names and the same meanings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide_toolkit.foreign import Source

ADAMW, ADAM8BIT = "adamw", "adam8bit"
OPTIMIZERS = {
    **dict.fromkeys(
        ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "paged_adamw_32bit"),
        ADAMW,
    ),
    **dict.fromkeys(
        ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "adamw_torch_8bit"), ADAM8BIT
    ),
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit"), "lion"),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit"), "lion8bit"),
    "adafactor": "adafactor",
    "ademamix": "ademamix",
    "muon": "muon",
    "sgd": "sgd",
    "adagrad": "adagrad",
    "rmsprop": "rmsprop",
}
"""Names of the Trainer's optimizers, and ours."""
SHAPES = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "warmup_stable_decay": "wsd",
}
_BETAS = {ADAMW, ADAM8BIT, "adam-mini"}
BLOCKS_KEPT = {"interval": 1}
"""A block a segment, as `gradient_checkpointing_enable` of transformers does."""
MANY = "one process trains here; weights and state that do not fit go to RAM by layer-streaming"
LOGGED = "metrics.jsonl and steps.csv are always in the run directory"
_QUANTIZED = {4: "nf4", 8: "int8"}


@attrs.frozen(kw_only=True)
class Keys:
    """The paths of settings in a tool's file; a setting that the tool lacks has none."""

    micro_batch: str
    parts: str
    epochs: str
    steps: str
    lr: str
    clip: str
    seed: str
    log_every: str
    run_dir: str
    save_every: str | None = None
    keep: str | None = None
    eval_every: str | None = None

    __repr__ = one_line


TRAINER = Keys(
    micro_batch="per_device_train_batch_size",
    parts="gradient_accumulation_steps",
    epochs="num_train_epochs",
    steps="max_steps",
    lr="learning_rate",
    clip="max_grad_norm",
    seed="seed",
    log_every="logging_steps",
    run_dir="output_dir",
    save_every="save_steps",
    keep="save_total_limit",
    eval_every="eval_steps",
)
"""The Trainer's own."""


def length(source: Source, keys: Keys, epochs: int) -> dict[str, Any]:
    """Return `steps` or `epochs` of `[train]`; `epochs` are the tool's default."""
    steps = source.look(keys.steps, int)
    if steps is not None and steps > 0:
        source.take(keys.steps, int)
        source.note(keys.epochs, f"the run ends after {steps} updates")
        return {"steps": steps}
    if steps is not None:
        source.note(keys.steps, "the length is in epochs")
    given = source.look(keys.epochs, float)
    if given is None:
        return {"epochs": epochs}
    source.take(keys.epochs, float)
    whole = max(1, round(given))
    if whole != given:
        source.note(keys.epochs, f"epochs are whole here: {whole}; train.steps sets any length")
    return {"epochs": whole}


def batch(source: Source, keys: Keys, size: int) -> tuple[dict[str, Any], int]:
    """Return `batch_size` of `[train]`, and its number of parts; `size` is the tool's default."""
    micro = source.take(keys.micro_batch, int) or size
    parts = source.take(keys.parts, int) or 1
    text = f"train.batch_size = {micro * parts} is the batch of one GPU in an update"
    source.note(keys.micro_batch, text)
    if parts > 1:
        source.note(keys.parts, f"the plugin gradient-accumulation splits a batch into {parts}")
    return {"batch_size": micro * parts}, parts


def run(source: Source, keys: Keys) -> dict[str, Any]:
    """Return the section `[run]`."""
    every = _whole(source, keys.save_every)
    return present(
        dir=source.take(keys.run_dir, str),
        log_every=_whole(source, keys.log_every),
        checkpoint_every=every,
        keep=source.take(keys.keep, int) if keys.keep else None,
    )


def evaluation(source: Source, keys: Keys) -> dict[str, Any]:
    """Return the section `[eval]`."""
    return present(every=_whole(source, keys.eval_every))


def _whole(source: Source, path: str | None) -> int | None:
    """Return a number of updates; a share of the run, as the Trainer allows it, has a note."""
    value = None if path is None else source.look(path, float)
    if path is None or value is None:
        return None
    if value < 1 or value != int(value):
        source.note(path, "a share of the run; here it is a number of updates")
        return None
    source.take(path, float)
    return int(value)


def optimizer(source: Source, named: str, default: str) -> dict[str, Any]:
    """Return `[optimizer]` without its rate, as the Trainer builds it.

    Args:
        source: the settings.
        named: the path of the optimizer's name.
        default: the tool's default, one of `OPTIMIZERS`.
    """
    given = source.look(named, str)
    name = OPTIMIZERS.get(given or default)
    if name is None:
        names = ", ".join(sorted(set(OPTIMIZERS.values())))
        source.note(named, f"no counterpart; {ADAMW} in its place, or one of {names}")
        name = ADAMW
    elif given is not None:
        source.take(named, str)
        if "paged" in given:
            text = "state is not paged here; layer-streaming keeps it in RAM"
            source.note(named, text)
    options: dict[str, Any] = {}
    decay = source.take("weight_decay", float)
    if name not in {"adagrad", "rmsprop"} or decay:
        options["weight_decay"] = decay or 0.0  # the Trainer's default; torch's AdamW has 0.01
    betas = [source.look(f"adam_beta{number}", float) for number in (1, 2)]
    epsilon = source.look("adam_epsilon", float)
    if name in _BETAS:
        first, second = betas
        if first is not None or second is not None:
            options["betas"] = [
                0.9 if first is None else first,
                0.999 if second is None else second,
            ]
        options |= present(eps=epsilon)
        source.taken.update(("adam_beta1", "adam_beta2", "adam_epsilon"))
    for path in ("adam_beta1", "adam_beta2", "adam_epsilon"):
        source.note(path, "" if name in _BETAS else f"not an option of {name}")
    return {"name": name, "options": options}


def schedule(source: Source, named: str, default: str) -> dict[str, Any]:
    """Return the settings of `lr-schedule`; without a name the schedule is `default`."""
    given = source.look(named, str)
    shape = SHAPES.get(given or default)
    if shape is None:
        known = ", ".join(sorted(set(SHAPES.values())))
        source.note(named, f"no counterpart; a constant rate in its place, or one of {known}")
        shape = "constant"
    else:
        source.take(named, str)
    steps = source.take("warmup_steps", float)
    share = source.take("warmup_ratio", float)
    if given == "constant":  # the Trainer's has no warmup
        for path in ("warmup_steps", "warmup_ratio"):
            source.note(path, "a constant rate has no warmup in the Trainer")
        return {"name": shape}
    if steps and share is not None:
        source.note("warmup_ratio", f"warmup_steps = {steps:g} counts")
    return {"name": shape, **present(warmup=(steps or share) or None)}


def adapters(source: Source, bits: int | None) -> dict[str, Any]:
    """Return what the plugin `lora` takes from common keys; frozen weights have `bits`, or bf16."""
    return {
        "base": _QUANTIZED.get(bits or 0, "bf16"),
        **present(
            alpha=source.take("lora_alpha", int),
            dropout=source.take("lora_dropout", float),
        ),
    }


def model(source: Source, path: str) -> dict[str, Any]:
    """Return `name` and `options` of `[model]`, without a dtype."""
    name = source.take(path, str)
    if name is None:
        return {}
    options = present(trust_remote_code=source.take("trust_remote_code", bool) or None)
    if is_id(name):
        source.note(path, "downloaded if it is not on this machine: model.options.download")
        options["download"] = True
    return {"name": f"hf:{name}", **table(options=options)}


def is_id(name: str) -> bool:
    """Return whether a name can be that of a model or data set on the hub, and not of a folder."""
    begins = name.startswith((".", "/", "~"))
    return not begins and name.count("/") <= 1 and not name.endswith("/")


def notes(source: Source, texts: Mapping[str, str]) -> None:
    """Record why keys are left out."""
    for path, text in texts.items():
        source.note(path, text)


def table(**sections: Any) -> dict[str, Any]:
    """Return the sections that have something in them."""
    return {name: section for name, section in sections.items() if section not in ({}, None)}


def present(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {key: value for key, value in values.items() if value is not None}
