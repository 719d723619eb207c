"""Descriptions of the launches of attention's kernels, to compile them without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neaptide_kernels.shipping import ShippedKernel

from . import described, tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_READ = ("query", "key", "value", "gradient")
"""Tensors that a descriptor can stand for."""
_KERNELS = {
    "attend": ("kernel", ("query", "key", "value", "output"), ("logsumexp",)),
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
_SIZES = {
    ("bf16", 64): tuning.CONFIGS[:1],
    ("bf16", 128): tuning.CONFIGS,
    ("bf16", 256): tuning.WIDE,
    ("fp32", 32): tuning.EXACT,
}


def shipped() -> Iterator[ShippedKernel]:
    """Yield each config's launches for heads of common sizes."""
    launches = (*_on_addresses(), *_on_descriptors())
    known = {(launch.name, launch.targets): launch for launch in launches}
    yield from known.values()


def _on_addresses() -> Iterator[ShippedKernel]:
    for (dtype, size), configs in _SIZES.items():
        for config in configs:
            rows, columns, warps = config["rows"], config["columns"], config["num_warps"]
            of_kernels = {
                "attend": (rows, columns, warps),
                "differentiate_keys": (config["key_rows"], columns, config["key_warps"]),
                "differentiate_queries": (rows, columns, warps),
            }
            for kind in _FLAGS:
                for name, sizes in of_kernels.items():
                    yield _launch(name, dtype, size, kind, sizes, tuning.STAGES[name])


def _on_descriptors() -> Iterator[ShippedKernel]:
    for target, (forward, backward) in described.launches().items():
        for size in (64, 128):
            launches: list[tuple[str, tuple[int, int, int], bool]] = []
            for one in forward:
                sizes = (one["rows"], one["columns"], one["num_warps"])
                launches.append(("attend", sizes, one["roles"]))
            for one in backward:
                sizes = (one["rows"], one["columns"], one["num_warps"])
                of_keys = (described.KEY_ROWS, one["key_columns"], described.KEY_WARPS)
                launches.append(("differentiate_queries", sizes, False))
                launches.append(("differentiate_keys", of_keys, False))
            for name, sizes, roles in launches:
                yield _launch(
                    name, "bf16", size, "causal", sizes, described.STAGES, target, roles=roles
                )


def _launch(
    name: str,
    dtype: str,
    size: int,
    kind: str,
    sizes: tuple[int, int, int],
    stages: int,
    target: int | None = None,
    *,
    roles: bool = False,
) -> ShippedKernel:
    """Return a launch with so many rows, columns and warps; on descriptors if there is a target."""
    module, tensors, sums = _KERNELS[name]
    rows, columns, warps = sizes
    on_descriptors = target is not None
    way = f", TMA{' and roles' if roles else ''}" if on_descriptors else ""
    block = {tensor: rows if tensor in ("query", "gradient") else columns for tensor in _READ}
    types = {
        **dict.fromkeys(tensors, f"*{dtype}"),
        **dict.fromkeys(sums, "*fp32"),
        "ranges": "*i32",
        "seeds": "*i64",
        **{f"{tensor}_{step}": "i64" for tensor in tensors for step in _STEPS},
        **_NUMBERS,
    }
    if on_descriptors:
        types |= {
            tensor: f"tensordesc<{dtype}[1, 1, {block[tensor]}, {size}]>"
            for tensor in tensors
            if tensor in _READ
        }
    addresses = [one for one in (*tensors, *sums) if types[one].startswith("*")]
    constants: dict[str, Any] = {
        "D": size,
        "D_VALUE": size,
        "BLOCK_D": size,
        "BLOCK_D_VALUE": size,
        **_FLAGS[kind],
        "ROWS": rows,
        "COLUMNS": columns,
        "EXACT": dtype == "fp32",
        "DESCRIBED": on_descriptors,
        "ROLES": roles,
    }
    return ShippedKernel(
        name=f"{name}: {dtype}, {size}, {kind}, {rows}x{columns}, {warps} warps{way}",
        module=f"neaptide_kernels.attention.on_triton.{module}",
        kernel=name,
        types=types,
        constants=constants,
        aligned=(*addresses, *(f"{tensor}_{step}" for tensor in tensors for step in _STEPS)),
        options={"num_warps": warps, "num_stages": stages},
        targets=() if target is None else (target,),
    )
