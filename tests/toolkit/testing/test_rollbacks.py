"""The law `rollback-is-forgotten`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support import plugin_with, stranger

from neaptide import ROLLBACK, hookimpl
from neaptide_toolkit.testing import ContractError, check_plugin

if TYPE_CHECKING:
    import torch


def spec_of(*, forgets: bool) -> Any:
    """Return the manifest of a plugin that scales gradients by what it has seen of them."""

    def on_run_start(self: Any, run: Any) -> None:
        self.largest = 0.0
        if forgets:
            run.stash.on_set(ROLLBACK, lambda: setattr(self, "largest", 0.0))

    def after_backward(self: Any, model: torch.nn.Module) -> None:
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        self.largest = max(self.largest, *(float(each.abs().max()) for each in gradients))
        for gradient in gradients:
            gradient.div_(1.0 + self.largest)

    hooks = {"on_run_start": hookimpl(on_run_start), "after_backward": hookimpl(after_backward)}
    return stranger(plugin_with(**hooks), "scaler", numerics="changes-training")


def test_a_plugin_that_forgets_keeps_the_law() -> None:
    check_plugin(spec_of(forgets=True), laws=["rollback-is-forgotten"])


def test_a_plugin_that_remembers_undone_updates_breaks_the_law() -> None:
    with pytest.raises(ContractError, match="ROLLBACK") as broken:
        check_plugin(spec_of(forgets=False), laws=["rollback-is-forgotten"])
    assert broken.value.law == "rollback-is-forgotten"
    assert "head.weight" in broken.value.came
