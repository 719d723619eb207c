"""The memory that a run needs without plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.api.memory import Ledger
from neaptide_toolkit.tensors import nested_tensors, tensor_bytes

from .optimizer_state import state_bytes

if TYPE_CHECKING:
    from neaptide.api.parameters import ParameterStore
    from neaptide.api.phases import Phase


def base_ledger(store: ParameterStore, phase: Phase) -> Ledger:
    """Return the memory that the core uses in `phase`, in bytes.

    This is the memory of weights, gradients, optimizer state, and the copy of the weights that can
    undo a predicted update. Activations are not included, because they depend on the batch.

    Raises:
        ModelError: there was no update yet, and the optimizer's state is not known before it.
    """
    spans = store.spans()
    trainable = sum(span.bytes for span in spans if span.trainable)
    ledger = Ledger()
    for span in spans:
        ledger = ledger.add("core", "weights", span.tier, span.bytes)
    if phase.runs_backward:
        ledger = ledger.add("core", "gradients", "device", trainable, ("backward", "update"))
    with store.optimizer_state() as state:
        nbytes = tensor_bytes(nested_tensors(state))
        if not any(state["state"].values()):
            nbytes += sum(state_bytes(store.optimizer).values())
    ledger = ledger.add("core", "optimizer.state", "device", nbytes)
    if phase.applies_prediction:
        ledger = ledger.add("core", "rollback", "host", trainable, ("predict",))
    return ledger
