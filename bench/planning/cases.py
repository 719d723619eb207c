"""Models and sets of plugins, and the memory that a real run of them takes."""

from __future__ import annotations

import gc
import json
import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

TEXT = (
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "gemma",
    "mixtral",
    "mixtral, grouped",
    "olmoe",
    "bert",
    "t5",
    "bart",
    "mamba",
)
IMAGES = ("vit", "convnext", "resnet")
"""Families of transformers."""
TIMM: dict[str, dict[str, int]] = {
    "vit_tiny_patch16_224": {"img_size": 64},
    "mixer_s32_224": {"img_size": 64},
    "swin_tiny_patch4_window7_224": {"img_size": 56},
    "efficientnet_b0": {},
    "regnetx_002": {},
    "convnext_atto": {},
}
"""Models of timm, and the side of their images where the model must know it."""
_SIDE = 64
"""The side of the others' images."""
KINDS = "neaptide_toolkit.testing.kinds"
ROWS = 8


def _kind(name: str, data: str, **options: Any) -> dict[str, Any]:
    width = {"width": options["width"]}
    return {
        "model": {"name": f"{KINDS}:{name}", "options": options},
        "data": {"name": f"{KINDS}:{data}", "options": width},
    }


def _gpt(layers: int, width: int, context: int) -> dict[str, Any]:
    options = {"layers": layers, "width": width, "heads": width // 64, "context": context}
    return {
        "model": {"name": "builtin:byte-gpt", "options": options},
        "data": {"name": "builtin:python-stdlib", "options": {"context": context}},
    }


def _recurrent(kind: str, **options: Any) -> dict[str, Any]:
    return {
        "model": {"name": "planning.models:recurrent", "options": {"kind": kind, **options}},
        "data": {"name": f"{KINDS}:sequences"},
    }


def _family(name: str) -> dict[str, Any]:
    data = "images" if name in IMAGES else "tokens"
    return {
        "model": {"name": "planning.models:family", "options": {"name": name}},
        "data": {"name": f"planning.models:{data}"},
    }


def _of_timm(name: str) -> dict[str, Any]:
    return {
        "model": {"name": "planning.models:of_timm", "options": {"name": name, **TIMM[name]}},
        "data": {
            "name": "planning.models:images",
            "options": {"side": TIMM[name].get("img_size", _SIDE)},
        },
    }


MODELS = {
    "byte-gpt, 4 x 192": _gpt(4, 192, 128),
    "byte-gpt, 6 x 384": _gpt(6, 384, 128),
    "byte-gpt, 2 x 256, 512 tokens": _gpt(2, 256, 512),
    "linear layers, 6 x 256": _kind("deep", "sequences", layers=6, width=256),
    "linear layers, 12 x 192": _kind("deep", "sequences", layers=12, width=192),
    "transformer encoder, 4 x 128": _kind("encoder", "sequences", layers=4, width=128),
    "transformer encoder, 8 x 256": _kind("encoder", "sequences", layers=8, width=256),
    "LSTM, 2 x 256": _kind("recurrent", "sequences", layers=2, width=256),
    "convolutions, 4 x 16": _kind("convolutions", "images", layers=4, width=16),
    "convolutions, 8 x 32": _kind("convolutions", "images", layers=8, width=32),
    "mixture of experts, 2 x 128": _kind("experts", "sequences", layers=2, width=128),
    "RNN": _recurrent("RNN"),
    "GRU": _recurrent("GRU"),
    "LSTM": _recurrent("LSTM"),
    "LSTM, bidirectional": _recurrent("LSTM", bidirectional=True),
    **{name: _family(name) for name in (*TEXT, *IMAGES)},
    **{f"timm {name}": _of_timm(name) for name in TIMM},
}
_STREAMED = {"resident": 0}
STACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "mixed-precision": {"mixed-precision": {}},
    "activation-checkpointing": {"activation-checkpointing": {}},
    "gradient-accumulation": {"gradient-accumulation": {"steps": 2}},
    "streaming, optimizer on the CPU": {"layer-streaming": {**_STREAMED, "optimizer_on": "cpu"}},
    "streaming, on the device": {"layer-streaming": {**_STREAMED, "optimizer_on": "device"}},
    "streaming, in backward": {"layer-streaming": {**_STREAMED, "update": "in_backward"}},
    "streaming, mixed-precision": {"layer-streaming": _STREAMED, "mixed-precision": {}},
}
WITHOUT_BLOCKS = {"LSTM, 2 x 256"}
"""Models that have no repeated blocks to stream or to compute again."""

OTHERS = {
    "RNN",
    "GRU",
    "LSTM",
    "LSTM, bidirectional",
    *IMAGES,
    *(f"timm {name}" for name in TIMM if name[:3] not in ("vit", "mix")),
}
STACKS_OF_OTHERS = ("none", "mixed-precision")


def cases() -> list[tuple[str, str]]:
    """Return every model with every set of plugins that it can have."""
    needs_blocks = {stack for stack in STACKS if "streaming" in stack or "checkp" in stack}
    return [
        (model, stack)
        for model in MODELS
        for stack in STACKS
        if not (model in WITHOUT_BLOCKS and stack in needs_blocks)
        and not (model in OTHERS and stack not in STACKS_OF_OTHERS)
    ]


def settings(model: str, stack: str, device: str) -> dict[str, Any]:
    """Return the configuration of a case."""
    train = {"batch_size": ROWS, "device": device}
    return {**MODELS[model], "plugins": STACKS[stack], "train": train}


def main() -> None:
    """Train the configuration that the arguments give; print the bytes that it took, as JSON."""
    device, given = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parents[1]))  # configurations name `planning.models`
    if device == "cuda" and find_spec("simulated_gpu"):
        import simulated_gpu  # noqa: F401, PLC0415 - it comes before torch
    print(json.dumps(_measured(json.loads(given), device)))


def _measured(given: dict[str, Any], device: str) -> dict[str, int]:
    import torch  # noqa: PLC0415 - see above

    from neaptide import HybridTrainer  # noqa: PLC0415
    from neaptide.hooks.enabling import configured  # noqa: PLC0415
    from neaptide.run import assembly  # noqa: PLC0415
    from neaptide_toolkit.offload import slab_bytes  # noqa: PLC0415
    from neaptide_toolkit.testing.allocations import counted  # noqa: PLC0415
    from neaptide_toolkit.testing.memory_counts import keep_workspaces  # noqa: PLC0415

    config = configured(given, ())[0]
    with HybridTrainer.from_config(config) as trainer:
        data = assembly.build_data(config, trainer.hooks)
        batches = [*islice(data.train, 3)]
    del trainer
    gc.collect()  # what it made is not the run's
    held = 0
    if device == "cuda":
        keep_workspaces(torch.device("cuda"))  # a plan counts them with CUDA's own memory
        held = torch.cuda.memory_allocated()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with counted() as found, HybridTrainer.from_config(config) as trainer:
        for batch in batches:
            trainer.step(batch, phase="full")
        slabs = slab_bytes()
        parameters = sum(one.numel() for one in trainer.model.parameters())
    if device == "cpu":
        return {"tensors": found.peak(), "pages": slabs, "parameters": parameters}
    return {
        "tensors": torch.cuda.max_memory_allocated() - held,
        "reserved": torch.cuda.max_memory_reserved(),
        "pages": slabs,
        "parameters": parameters,
    }


if __name__ == "__main__":
    main()
