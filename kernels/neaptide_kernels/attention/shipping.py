"""Descriptions of the launches of attention's kernels, to compile them without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_kernels.shipping import ShippedKernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STAGES = {"attend": 3, "differentiate_keys": 3, "differentiate_queries": 2}
"""Blocks of each kernel's loop that are in flight; with others, some launches spill registers."""
_STEPS = ("batch", "head", "step")
_NUMBERS = {
    "heads": "i32",
    "group": "i32",
    "n": "i32",
    "m": "i32",
    "factor": "fp32",
    "softcap": "fp32",
    "dropout": "fp32",
    "window": "i32",
}
_FORWARD = ("query", "key", "value", "output")
_KERNELS = {
    "attend": ("kernel", _FORWARD, ("logsumexp",)),
    "differentiate_keys": (
        "kernel_backward",
        ("query", "key", "value", "gradient", "for_key", "for_value"),
        ("logsumexp", "through"),
    ),
    "differentiate_queries": (
        "kernel_backward",
        ("query", "key", "value", "gradient", "for_query"),
        ("logsumexp", "through"),
    ),
}
"""Of each kernel: its module, its tensors of the op's dtype, and its float32 tensors."""
_PLAIN = {"CAUSAL": True, "WINDOW": False, "RANGES": False, "SOFTCAP": False, "DROPOUT": False}
_FLAGS = {
    "causal": _PLAIN,
    "all options": dict.fromkeys(_PLAIN, True),
}


def shipped_for(
    configs: Mapping[tuple[str, int], tuple[Mapping[str, Any], ...]],
) -> Iterator[ShippedKernel]:
    """Yield the launches of each kernel for `configs` of a Triton dtype and a size of heads."""
    known: set[str] = set()
    for (dtype, size), each in configs.items():
        for config in each:
            for kind, flags in _FLAGS.items():
                for name in _KERNELS:
                    launch = _launch(name, dtype, size, kind, flags, config)
                    if launch.name not in known:
                        known.add(launch.name)
                        yield launch


def _launch(
    name: str,
    dtype: str,
    size: int,
    kind: str,
    flags: Mapping[str, bool],
    config: Mapping[str, Any],
) -> ShippedKernel:
    module, tensors, sums = _KERNELS[name]
    of_keys = name == "differentiate_keys"
    rows, columns = config["key_rows" if of_keys else "rows"], config["columns"]
    warps = config["key_warps" if of_keys else "num_warps"]
    types = {
        **dict.fromkeys(tensors, f"*{dtype}"),
        **dict.fromkeys(sums, "*fp32"),
        "ranges": "*i32",
        "seeds": "*i64",
        **{f"{tensor}_{step}": "i64" for tensor in tensors for step in _STEPS},
        **_NUMBERS,
    }
    return ShippedKernel(
        name=f"{name}: {dtype}, {size}, {kind}, {rows}x{columns}, {warps} warps",
        module=f"neaptide_kernels.attention.{module}",
        kernel=name,
        types=types,
        constants={
            "D": size,
            "D_VALUE": size,
            "BLOCK_D": size,
            "BLOCK_D_VALUE": size,
            **flags,
            "ROWS": rows,
            "COLUMNS": columns,
            "EXACT": dtype == "fp32",
        },
        aligned=(*tensors, *sums, *(f"{tensor}_{step}" for tensor in tensors for step in _STEPS)),
        options={"num_warps": warps, "num_stages": STAGES[name]},
    )
