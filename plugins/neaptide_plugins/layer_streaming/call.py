"""One call of a block, between its forward and its backward."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.autograd.graph import saved_tensors_hooks

from neaptide.recompute import Arguments, Kept, Surroundings

from .captured import Outside
from .hidden import Hidden
from .leaves import before_accumulation, set_aside
from .oom import is_out_of_memory
from .pieces import Batch, joined
from .probing import is_close, probe, sampled, ways_out
from .tensors import Found, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from .inputs import Waiting
    from .order import Moment
    from .recompute import Recomputed

_WITHOUT_HOOKS = "don't yet support saved tensor hooks"
"""What torch.func says inside a forward whose graph is let go as it is made."""


@attrs.define(eq=False)
class Call:
    """What is known of one call between its forward and its backward."""

    unit: Recomputed
    arguments: Arguments
    args: Any
    kwargs: Any
    inputs: list[torch.Tensor]
    """The distinct tensors passed, wherever they are nested."""
    shared: list[nn.Parameter]
    weights: tuple[int, ...]
    """Of which update they are."""
    kept: list[Kept] = attrs.field(init=False)
    surroundings: list[Surroundings] = attrs.field(factory=list)
    """Of each micro-batch."""
    hidden: list[Hidden] = attrs.field(factory=list)
    """Likewise."""
    waiting: list[tuple[Kept, Waiting]] = attrs.field(factory=list)
    """What of it is in RAM meanwhile."""
    whole: Batch | None = None
    """The batch in one piece, where there is one."""
    batch: Batch | None = None
    """In pieces; None where it goes through as it is."""
    random: bool = False
    """Whether the forward drew random numbers."""
    outside: Outside | None = None
    """The graph around the call, while that is checked."""
    result: Any = None
    came: list[torch.Tensor] = attrs.field(factory=list)
    """The distinct tensors that came out of the forward."""
    watched: list[torch.Tensor] | None = None
    """Samples of their values, where the backward is to compare them."""

    def __attrs_post_init__(self) -> None:
        self.kept = [kept for _, _, kept in self.arguments.passed if isinstance(kept, Kept)]

    # -- forward -------------------------------------------------------------------------------

    def forward(self) -> list[torch.Tensor]:
        """Run the block, in more pieces than asked for if memory runs out; the graph is let go.

        It runs with gradients on: code and kernels that look at that do as they always do.
        """
        unit = self.unit
        self.whole = Batch.of(self.inputs, 1)
        if unit.micro_batches > 1:
            self.batch = Batch.of(self.inputs, unit.micro_batches)
            probe(self)
        unit.seen += 1
        # A block may begin late to reach outside, or to draw what is not torch's: calls 1, 2, 4, 8
        # and so on are looked at.
        looked_at = unit.seen.bit_count() == 1
        self.outside = Outside(self.inputs) if looked_at else None
        before = Surroundings.now(unit.buffers.before())
        hidden = Hidden.now(unit.block.module)
        while (failed := self.tried(self._forward)) is not None:
            before.set_random()
            hidden.bring_back()
            for entry in self.surroundings[0].buffers.entries:
                if entry.copy is not None:
                    entry.owner._buffers[entry.name] = entry.live.copy_(entry.copy)
            self.surroundings, self.hidden = [], []
            if unit.hooked and _WITHOUT_HOOKS in failed and not self.arguments.changed:
                unit.hooked = False
            else:
                self._split_more(failed, "forward")
        self.random = before.random_moved()
        unit.learn(self.arguments)
        for surroundings in self.surroundings:
            surroundings.buffers.settle(unit.block.name)
        known = {id(tensor) for tensor in self.inputs}
        bare = [one if id(one) in known else one.detach() for one in self.came]
        self.outside = None
        if looked_at:
            self.watched = [sampled(one) for one in bare]
        return bare

    def tried(self, action: Callable[[], None]) -> str | None:
        """Return None, or the allocator's message, once nothing of what failed is held any more."""
        try:
            action()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) and _WITHOUT_HOOKS not in str(error):
                raise
            return str(error)
        return None

    def _split_more(self, failed: str, moment: Moment) -> None:
        unit = self.unit
        now = 1 if self.batch is None else self.batch.count
        whole, reason = self.whole, None
        if not unit.splittable:
            reason = "whose statistics are of the whole batch"
        elif whole is None or whole.size < 2 * now:
            reason = "which has no more samples to split"
        elif moment == "backward" and self.random:
            reason = "which draws random numbers, others in smaller pieces"
        if reason is not None or whole is None:
            msg = f"block {unit.block.name!r}, {reason}: {failed}"
            raise torch.OutOfMemoryError(msg)
        self.batch = batch = Batch(whole.size, 2 * now)
        unit.micro_batches = max(unit.micro_batches, batch.count)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _forward(self) -> None:
        unit = self.unit
        hooks = saved_tensors_hooks(_nothing, self._not_kept) if unit.hooked else nullcontext()
        with torch.enable_grad(), hooks:
            if self.batch is None or self.batch.count == 1:
                self.batch = None
                self._note()
                self.result, self.came = self.run(self.args, self.kwargs, self.inputs)
                self._check(self.came)
                return
            results = []
            for piece in range(self.batch.count):
                self._note()
                inputs = self.batch.piece(self.inputs, piece)
                memo = {id(kept): given for kept, given in zip(self.kept, inputs, strict=True)}
                args, kwargs = self.arguments.again([], memo)
                result, came = self.run(args, kwargs, inputs)
                self._check(came)
                self._check_objects((args, kwargs), inputs)
                bare = {id(one): one.detach() for one in came}
                results.append((replaced(result, bare), list(bare.values())))
        self.result, self.came = joined(unit.block.name, results, self.batch)

    def _check(self, came: list[torch.Tensor]) -> None:
        unit = self.unit
        if self.outside is not None:
            own = [parameter for owner in unit.block.needs for parameter in owner.parameters]
            self.outside.check(unit.block.name, came, own, unit.residency.holds)
        if self.batch is not None and self.arguments.changed:
            msg = (
                f"block {unit.block.name!r} changes an input in place, which its micro-batches "
                f"cannot; {ways_out(unit.block.name)}"
            )
            raise RuntimeError(msg)

    def _check_objects(self, passed: Any, inputs: Sequence[torch.Tensor]) -> None:
        known = {id(tensor) for tensor in inputs}
        if any(id(tensor) not in known for tensor in Found().look(passed).tensors):
            name = self.unit.block.name
            msg = (
                f"block {name!r} puts tensors into an object it is passed (a cache), which its "
                f"micro-batches cannot; {ways_out(name)}"
            )
            raise RuntimeError(msg)

    def _note(self) -> None:
        self.surroundings.append(Surroundings.now(self.unit.buffers.before()))
        self.hidden.append(Hidden.now(self.unit.block.module))

    def _not_kept(self, _: None) -> torch.Tensor:
        msg = (
            f"a tensor from inside block {self.unit.block.name!r} is used outside without having "
            f"been returned (by a hook, or as an attribute), where its graph is not kept; return "
            f"it from the block, or set mode = 'graph'"
        )
        raise RuntimeError(msg)

    def run(
        self, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor]
    ) -> tuple[Any, list[torch.Tensor]]:
        """Call the block; return its result and the distinct tensors that came out.

        Besides those in the result: inputs changed in place, and what was put into objects that
        were passed (a cache).
        """
        versions = [tensor._version for tensor in inputs]
        result = self.unit.apart(self.unit.forward(*args, **kwargs))
        found = Found().look(result)
        for tensor, version in zip(inputs, versions, strict=True):
            if tensor._version != version:
                found.look(tensor)
        known = {id(tensor) for tensor in inputs}
        for tensor in Found().look((args, kwargs)).tensors:
            if id(tensor) not in known:
                found.look(tensor)
        return result, found.tensors

    def finish(self, outputs: tuple[torch.Tensor, ...]) -> Any:
        """Return what the block returned, with the graph's tensors in it and in passed objects."""
        others = {id(old): new for old, new in zip(self.came, outputs, strict=True)}
        result = replaced(self.result, others)
        known = {id(tensor) for tensor in self.inputs}
        added = {key: new for key, new in others.items() if key not in known}
        if added:
            replaced((self.args, self.kwargs), added)
        if self.unit.inputs is not None:
            self.unit.inputs.leave(self)
        self.arguments.settle()
        self.args = self.kwargs = self.result = None
        self.inputs, self.came = [], []
        return result

    # -- backward ------------------------------------------------------------------------------

    def backward(
        self, gradients: Sequence[torch.Tensor | None], *, own_too: bool
    ) -> list[torch.Tensor | None]:
        """Compute again, with a graph; return the gradients of what was passed.

        Those of streamed parameters are taken if `own_too`; `torch.autograd.grad` of something else
        does not ask for them.
        """
        unit, arrived = self.unit, list(gradients)
        unit.check_weights(self.weights)
        own = [parameter for owner in unit.block.needs for parameter in owner.parameters]
        if unit.inputs is not None:
            unit.inputs.bring(self)
        leaves = [kept.leaf() for kept in self.kept]
        passed_on = before_accumulation(leaves)
        asked: list[torch.Tensor] | None = None
        if own_too:
            unit.gradients.prepare(unit.block)
        else:
            asked = [*self.shared, *(leaf for leaf in leaves if leaf.requires_grad)]
        # Set aside where they lie: on the host, but for shared ones.
        with set_aside([*own, *self.shared]), unit.using("backward"):
            parameters = [*own, *self.shared]
            while (
                failed := self.tried(lambda: self._backward(leaves, arrived, asked))
            ) is not None:
                for tensor in (*parameters, *leaves):
                    tensor.grad = None
                unit.gradients.forget_pieces(unit.block)
                self._split_more(failed, "backward")
                assert self.batch is not None, "it was split"
                self.surroundings = self.surroundings[:1] * self.batch.count
                self.hidden = self.hidden[:1] * self.batch.count
            if own_too:
                unit.gradients.take(unit.block)
            else:
                unit.gradients.pass_over(unit.block)
            shared = [parameter.grad for parameter in self.shared]
        if self.batch is not None:
            passed_on.clear()
        return [*shared, *(passed_on.get(i, leaf.grad) for i, leaf in enumerate(leaves))]

    def _backward(
        self,
        leaves: list[torch.Tensor],
        arrived: list[torch.Tensor | None],
        asked: list[torch.Tensor] | None,
    ) -> None:
        for piece in range(1 if self.batch is None else self.batch.count):
            self._backward_of(piece, leaves, arrived, asked)
            if self.batch is not None:
                self.unit.gradients.add_piece(self.unit.block)

    def _backward_of(
        self,
        piece: int,
        leaves: list[torch.Tensor],
        arrived: list[torch.Tensor | None],
        asked: list[torch.Tensor] | None,
    ) -> None:
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self.surroundings[piece].restored())
            stack.enter_context(self.hidden[piece].restored())
            # A leaf that requires grad may not be changed in place, its copy may.
            whole = [
                leaf.clone() if kept.copied else leaf
                for kept, leaf in zip(self.kept, leaves, strict=True)
            ]
            inputs = whole if self.batch is None else self.batch.piece(whole, piece)
            memo = {id(kept): given for kept, given in zip(self.kept, inputs, strict=True)}
            args, kwargs = self.arguments.again([], memo)
            _, outputs = self.run(args, kwargs, inputs)
        if len(outputs) != len(arrived) or not self._as_before(outputs):
            msg = (
                f"block {self.unit.block.name!r} returned something else the second time, so it "
                f"cannot be recomputed (chance that is not torch's, or hidden state); exclude it "
                f"from layer streaming, or set mode = 'graph'"
            )
            raise RuntimeError(msg)
        pairs = [
            (output, self._share(gradient, piece))
            for output, gradient in zip(outputs, arrived, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if pairs:
            torch.autograd.backward(
                [output for output, _ in pairs],
                [gradient for _, gradient in pairs],
                inputs=asked,
            )

    def _as_before(self, outputs: list[torch.Tensor]) -> bool:
        """Return whether the outputs are those of the forward, as far as that is watched."""
        if self.watched is None or self.batch is not None:
            return True
        return all(
            is_close(before, sampled(output))
            for before, output in zip(self.watched, outputs, strict=True)
        )

    def _share(self, gradient: torch.Tensor, piece: int) -> torch.Tensor:
        return gradient if self.batch is None else self.batch.piece([gradient], piece)[0]


def _nothing(_: torch.Tensor) -> None:
    """Keep nothing of what a graph that is let go would save."""
