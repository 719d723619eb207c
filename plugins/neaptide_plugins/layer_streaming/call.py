"""One call of a block, between its forward and its backward."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.autograd.graph import saved_tensors_hooks

from neaptide.recompute import Arguments, Kept, Surroundings

from .captured import Outside
from .hidden import Hidden
from .oom import is_out_of_memory
from .pieces import Batch, joined
from .tensors import Found, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from .inputs import Waiting
    from .order import Moment
    from .recompute import Recomputed

_WITHOUT_HOOKS = "don't yet support saved tensor hooks"
"""What torch.func says inside a forward whose graph is let go as it is made."""
_WATCHED = 2
"""Calls of each block whose second forward is compared with the first."""


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
    watched: list[tuple[torch.Tensor, int]] | None = None
    """The same without their graph, and their versions, where the backward is to compare them."""

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
            self._probe()
        self.outside = Outside(self.inputs) if unit.watched < _WATCHED else None
        before = Surroundings.now(unit.buffers.before())
        hidden = Hidden.now(unit.block.module)
        while (failed := self._tried(self._forward)) is not None:
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
        if self.outside is not None:
            self.outside = None
            unit.watched += 1
            self.watched = [(one.detach(), one._version) for one in bare]
        return bare

    def _tried(self, action: Callable[[], None]) -> str | None:
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
                self.result, self.came = self._run(self.args, self.kwargs, self.inputs)
                self._check(self.came)
                return
            results = []
            for piece in range(self.batch.count):
                self._note()
                inputs = self.batch.piece(self.inputs, piece)
                memo = {id(kept): given for kept, given in zip(self.kept, inputs, strict=True)}
                args, kwargs = self.arguments.again([], memo)
                result, came = self._run(args, kwargs, inputs)
                self._check(came)
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
                f"cannot; {_ways_out(unit.block.name)}"
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

    def _probe(self) -> None:
        """Compare pieces with the whole once, so that nothing is split that is no batch."""
        unit, batch = self.unit, self.batch
        if unit.probed or batch is None or batch.count == 1:
            return
        unit.probed = True
        with self._evaluated():
            whole: list[list[torch.Tensor]] = []
            if self._tried(lambda: whole.append(self._outputs([self.inputs]))) is not None:
                return  # the very reason for going through in pieces
            pieces = [batch.piece(self.inputs, piece) for piece in range(batch.count)]
            try:
                parts = self._outputs(pieces, batch)
                close = all(map(_is_close, whole[0], parts))
            except RuntimeError as error:
                msg = f"{error}; {_ways_out(unit.block.name)}"
                raise RuntimeError(msg) from error
        if not close:
            msg = (
                f"block {unit.block.name!r} returns something else for {batch.count} micro-batches "
                f"than for the whole batch; {_ways_out(unit.block.name)}"
            )
            raise RuntimeError(msg)

    def _outputs(
        self, given: Sequence[Sequence[torch.Tensor]], batch: Batch | None = None
    ) -> list[torch.Tensor]:
        results = []
        for inputs in given:
            copies = [tensor.clone() for tensor in inputs]
            memo = {id(kept): copy for kept, copy in zip(self.kept, copies, strict=True)}
            args, kwargs = self.arguments.again([], memo)
            results.append(self._run(args, kwargs, copies))
        return results[0][1] if batch is None else joined(self.unit.block.name, results, batch)[1]

    @contextmanager
    def _evaluated(self) -> Iterator[None]:
        """Without dropout and the like, and without a trace in random state or buffers."""
        modules = [(module, module.training) for module in self.unit.block.module.modules()]
        unit = self.unit
        surroundings = Surroundings.now(unit.buffers.before())
        with surroundings.restored(), Hidden.now(unit.block.module).restored():
            try:
                for module, _ in modules:
                    module.training = False
                yield
            finally:
                for module, training in modules:
                    module.training = training

    def _run(
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

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Compute again, with a graph; return the gradients of what was passed."""
        unit, arrived = self.unit, list(gradients)
        own = [parameter for owner in unit.block.needs for parameter in owner.parameters]
        if unit.inputs is not None:
            unit.inputs.bring(self)
        leaves = [kept.leaf() for kept in self.kept]
        passed_on = _before_accumulation(leaves)
        unit.gradients.prepare(unit.block)
        with unit.using("backward"), _set_aside([*own, *self.shared]):
            parameters = [*own, *self.shared]
            while (failed := self._tried(lambda: self._backward(leaves, arrived))) is not None:
                for tensor in (*parameters, *leaves):
                    tensor.grad = None
                unit.gradients.forget_pieces(unit.block)
                self._split_more(failed, "backward")
                assert self.batch is not None, "it was split"
                self.surroundings = self.surroundings[:1] * self.batch.count
                self.hidden = self.hidden[:1] * self.batch.count
            unit.gradients.take(unit.block)
            shared = [parameter.grad for parameter in self.shared]
        if self.batch is not None:
            passed_on.clear()
        return [*shared, *(passed_on.get(i, leaf.grad) for i, leaf in enumerate(leaves))]

    def _backward(self, leaves: list[torch.Tensor], arrived: list[torch.Tensor | None]) -> None:
        for piece in range(1 if self.batch is None else self.batch.count):
            self._backward_of(piece, leaves, arrived)
            if self.batch is not None:
                self.unit.gradients.add_piece(self.unit.block)

    def _backward_of(
        self, piece: int, leaves: list[torch.Tensor], arrived: list[torch.Tensor | None]
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
            _, outputs = self._run(args, kwargs, inputs)
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
                [output for output, _ in pairs], [gradient for _, gradient in pairs]
            )

    def _as_before(self, outputs: list[torch.Tensor]) -> bool:
        """Return whether the outputs are those of the forward, as far as that is watched."""
        if self.watched is None or self.batch is not None:
            return True
        return all(
            _is_close(before, output.detach())
            for (before, version), output in zip(self.watched, outputs, strict=True)
            if before._version == version
        )

    def _share(self, gradient: torch.Tensor, piece: int) -> torch.Tensor:
        return gradient if self.batch is None else self.batch.piece([gradient], piece)[0]


@contextmanager
def _set_aside(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let gradients of earlier backwards be, so that this one's are told apart."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = None
            if gradient is not None and gradient.device == parameter.device:
                parameter.grad = gradient


def _before_accumulation(leaves: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return where gradients will be whose strides their leaf's `.grad` would not keep.

    Kernels sum in another order over other strides, so that the next backward would see it.
    """
    found: dict[int, torch.Tensor] = {}
    for index, leaf in enumerate(leaves):
        if leaf.requires_grad:

            def look(gradient: torch.Tensor, index: int = index, leaf: torch.Tensor = leaf) -> None:
                if gradient.layout != torch.strided or gradient.stride() != leaf.stride():
                    found[index] = gradient

            leaf.register_hook(look)  # type: ignore[no-untyped-call]  # torch leaves it so
    return found


def _nothing(_: torch.Tensor) -> None:
    """Keep nothing of what a graph that is let go would save."""


def _ways_out(block: str) -> str:
    return f"set micro_batches = 1, or exclude {block!r} from layer streaming"


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    # Matrices of other shapes are summed in another order: a few hundred units in the last place.
    tolerance = 512 * torch.finfo(one.dtype).eps
    scale = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
