"""The steps of `gpu.py`: what each runs, in which slice, for how long. The first is worth most."""

from __future__ import annotations

from dataclasses import dataclass

NEAPTIDE = (
    "torch", "numpy", "pluggy", "attrs", "cattrs", "structlog", "cyclopts", "rich", "tomlkit",
    "yaml", "safetensors", "psutil",
)  # fmt: skip
"""Modules that Neaptide imports."""
TESTS = (*NEAPTIDE, "pytest", "pytest_timeout", "hypothesis")

SLICES = {
    "a": "tests on the device",
    "b": "facts and rates of the machine",
    "c": "kernels and their rivals",
    "d": "models of 1.5 and 7 billion parameters",
    "e": "the other benchmarks",
    "f": "simulated against measured",
}


@dataclass(frozen=True)
class Step:
    """One program to run."""

    slice: str
    name: str
    real: tuple[str, ...]
    """The program and its arguments, as `python` takes them in the repository's root."""
    tiny: tuple[str, ...]
    """The same in a dry run; empty if another step runs the same code there."""
    limit: float = 240.0
    """Seconds after which it is stopped."""
    needs: tuple[str, ...] = NEAPTIDE
    tests: bool = False
    """True if it is a run of pytest."""


def _tests(name: str, real: tuple[str, ...], tiny: tuple[str, ...], limit: float) -> Step:
    pytest = ("-m", "pytest")
    return Step("a", name, (*pytest, *real), (*pytest, *tiny), limit, TESTS, tests=True)


def _kernel(op: str) -> Step:
    """Return the step of an op. A dry run does all of them in the first, in one process."""
    program = ("bench/kernels.py", "--device", "cuda")
    every = [word for one in OPS for word in ("--op", one)]
    tiny = (*program, *every, "--quick", "--no-compile", "--rounds", "3")
    return Step("c", op, (*program, "--op", op), tiny if op == OPS[0] else (), 150.0)


def _scale(key: str) -> Step:
    real = ("bench/scale.py", "--only")
    tiny = () if key.startswith("c3") else (*real, f"tiny-{key}", "--tiny")
    return Step("d", key, (*real, key), tiny, 400.0)


def _other(name: str, *tiny: str, real: tuple[str, ...] = ()) -> Step:
    program = (f"bench/{name}.py", "--device", "cuda")
    title = name.rpartition("/")[2].replace("_", " ")
    return Step("e", title, (*program, *real), (*program, *tiny), 150.0)


OPS = (
    "quantize_int8", "dequantize_int8", "adam8bit_step", "adamw_split_step", "apply_delta",
    "apply_int8_delta", "encode_state", "chunked_cross_entropy", "lion8bit_step",
    "rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward", "gated_unit",
    "gated_unit_backward", "rope",
    "attention", "attention_backward", "rssm_rollout",
)  # fmt: skip
"""Ops of Neaptide; those with a stated target first."""

SCALE = (
    "c2-1.5b-16gb-16k-adamw-streamed-none",
    "c2-1.5b-all-16k-adamw-resident-none",
    "c3-7b-24gb-16k-adamw-streamed-none",
    "c3-7b-all-16k-adamw-resident-none",
    "c2-1.5b-16gb-16k-adamw-fsdp2-none",
    "c3-7b-24gb-16k-adamw-fsdp2-none",
    "c2-1.5b-16gb-16k-adamw-streamed-lagged",
    "c3-7b-24gb-16k-adamw-streamed-lagged",
    "c3-7b-16gb-16k-adamw-streamed-none",
    "c2-1.5b-16gb-16k-adamw-torchao-none",
    "c3-7b-24gb-16k-adamw-torchao-none",
)
"""Keys of configurations of `scale.py`."""

SUITE = ("plugins", "toolkit", "core/api", "core/checkpoint", "core/loop", "core/run")
"""Rooms of `tests/` in which something trains, copies or computes on a device."""

_MEMORY = ("bench/cuda_memory.py",)

STEPS = (
    _tests(
        "streaming, plugins, runs",
        ("tests/simulated_gpu",),
        ("tests/simulated_gpu/test_configured_runs.py",),
        300.0,
    ),
    _tests(
        "contract of every plugin",
        ("tests/contract/test_every_plugin.py",),
        ("tests/contract/test_every_plugin.py", "-k", "ema"),
        300.0,
    ),
    _tests(
        "kernels",
        ("tests/kernels", "--ignore=tests/kernels/test_interpreted.py",
         "--ignore=tests/kernels/test_compiled.py"),
        ("tests/kernels/apply_delta",),
        240.0,
    ),
    _tests(
        "plugins, toolkit, core",
        tuple(f"tests/{room}" for room in SUITE),
        ("tests/plugins/ema",),
        420.0,
    ),
    Step(
        "b",
        "profile",
        ("bench/machine_profile.py",),
        ("bench/machine_profile.py", "--tiny"),
        120.0,
        ("torch",),
    ),
    Step(
        "b",
        "cuda facts",
        ("bench/cuda_facts.py",),
        ("bench/cuda_facts.py", "--tiny"),
        330.0,
        ("torch",),
    ),
    Step("b", "cuda memory", _MEMORY, _MEMORY, 60.0, ("torch",)),
    *map(_kernel, OPS),
    *map(_scale, SCALE),
    _other("plugins/optimizer_offload", "--rounds", "1", "--width", "64", real=("--width", "8192")),
    _other("plugins/activation_compression", "--rounds", "2", "--width", "32", "--layers", "1"),
    _other("plugins/low_precision_backward", "--rounds", "2", "--tiny"),
    _other("plugins/fused_layers", "--rounds", "2", "--tiny"),
    _other("memory_guide", "--size", "toy"),
    _other("overhead", "--rounds", "2", "--steps", "3"),
    _other("plugins/optimizers", "--matrices", "1", "--side", "16", "--rounds", "1"),
    _other("runs/gradient_norm", "--pairs", "2", "--models", "1", real=("--pairs", "50")),
    _other("plugins/plugin_cost", "--rounds", "2"),
    _other("plugins/by_hand", "--rounds", "2"),
    _other("predict_cost", "--updates", "20", "--block", "10", real=("--updates", "400")),
)  # fmt: skip
"""All steps that need a GPU, by slice and worth."""
