"""`init_scale` multiplies what is drawn and changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neaptide_plugins.builtin_models import byte_gpt, digits_cnn, mlp
from neaptide_plugins.builtin_models.config import ByteGptOptions, DigitsCnnOptions, MlpOptions

MODELS = {
    "byte-gpt": (byte_gpt.build, ByteGptOptions, {"layers": 2, "width": 16, "heads": 2}),
    "digits-cnn": (digits_cnn.build, DigitsCnnOptions, {"channels": 4}),
    "mlp": (mlp.build, MlpOptions, {"width": 16}),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_matrices_are_scaled_and_the_rest_is_as_it_was(name: str) -> None:
    build: Any
    build, options, small = MODELS[name]
    torch.manual_seed(0)
    plain = dict(build(options(**small)).named_parameters())
    torch.manual_seed(0)
    doubled = dict(build(options(**small, init_scale=2.0)).named_parameters())
    for key, weight in plain.items():
        factor = 2.0 if weight.ndim > 1 else 1.0
        torch.testing.assert_close(doubled[key], weight * factor, rtol=1e-6, atol=0.0)
