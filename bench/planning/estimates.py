"""What other estimators say of a model, from its number of parameters."""

from __future__ import annotations


def of_others(parameters: int, *, streamed: bool) -> dict[str, int]:
    """Return bytes on the device, by estimator. None of them counts activations.

    accelerate: `estimate-memory`, a step of Adam in float32: four times the weights. It knows no
    offloading. DeepSpeed: `estimate_zero2_model_states_mem_needs` for one GPU, training in fp16:
    20 bytes a parameter, or 2 with `cpu_offload`.
    """
    return {"accelerate": 16 * parameters, "DeepSpeed": (2 if streamed else 20) * parameters}
