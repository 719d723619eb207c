"""The optimizer's state of which each process has the rows of its part of a parameter."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.tensors import mapped
from neaptide_toolkit.tensors import laid_out_as

from .meetings import LoanRequest
from .rows import RowShare, gathered, is_part, part_of_entry, stand_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from neaptide.api.spans import Mode, Span
    from neaptide_toolkit.ranks.group import Ranks

    from .meetings import Meetings


@attrs.frozen(eq=False)
class StateParts:
    """The state of parameters, by their names.

    An optimizer here updates each value of a weight by itself. So its state has a value for each
    value of the weight, or one for the whole parameter, which all processes have.
    """

    optimizer: torch.optim.Optimizer
    parameters: Mapping[str, nn.Parameter]
    rows: Mapping[str, RowShare]
    numbers: Mapping[str, int]

    @classmethod
    def of(
        cls, optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], ranks: Ranks
    ) -> StateParts:
        """Return the state of whole parameters, of which only this process's rows are left."""
        rows = {
            name: RowShare(tuple(one.shape), ranks.rank, ranks.size)
            for name, one in parameters.items()
        }
        made = cls(optimizer, parameters, rows, {name: i for i, name in enumerate(parameters)})
        made._cut()
        return made

    def _cut(self) -> None:
        """Keep only the rows of state that the optimizer made for whole parameters."""
        for name, parameter in self.parameters.items():
            if parameter in self.optimizer.state:
                entry = self.optimizer.state[parameter]
                for key, value in entry.items():
                    entry[key] = part_of_entry(value, self.rows[name])

    def to_ram(self) -> None:
        """Move state that the optimizer has made already to RAM."""
        for parameter in self.parameters.values():
            entry = self.optimizer.state.get(parameter, {})
            for key, value in entry.items():
                if isinstance(value, torch.Tensor):
                    entry[key] = value.cpu()

    def part(self, name: str, key: str) -> torch.Tensor:
        """Return this process's rows of an entry."""
        found: torch.Tensor = self._entry(name)[key]
        return found

    def outline(self, name: str) -> tuple[dict[str, Any], list[str]]:
        """Return the state of a whole parameter, with stand-ins for what is divided; their keys."""
        entry, rows = self._entry(name), self.rows[name]
        keys = [key for key, value in entry.items() if is_part(value, rows)]
        parts = {key: stand_in(entry[key].dtype, rows.shape) for key in keys}
        return {**entry, **parts}, keys

    def hand_out(self, name: str, takers: Sequence[int], ranks: Ranks) -> dict[str, Any]:
        """Return the state of a whole parameter, in those processes that take it."""
        entry, rows = self._entry(name), self.rows[name]
        return {
            key: gathered(value, rows, takers, ranks) if is_part(value, rows) else value
            for key, value in sorted(entry.items())
        }

    @contextmanager
    def lend(
        self, span: Span, mode: Mode, on: torch.device | None, meetings: Meetings
    ) -> Iterator[dict[str, Any]]:
        """Lend the state of a whole parameter; a loan for writing keeps its rows."""
        entry = self._entry(span.name)
        whole = {}
        if entry:  # the processes make state together
            request = LoanRequest(self.numbers[span.name], "state", mode == "write")
            found = meetings.borrow(request)
            whole = {key: found[key] for key in entry}
        if on is not None:
            whole = mapped(whole, lambda tensor: tensor.to(on))
        yield whole
        if mode == "write":
            self._write(span.name, whole)

    def _entry(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.optimizer.state.get(self.parameters[name], {})
        return found

    def _write(self, name: str, whole: Mapping[str, Any]) -> None:
        parameter, rows = self.parameters[name], self.rows[name]
        if not whole:
            self.optimizer.state.pop(parameter, None)
            return
        entry = self.optimizer.state[parameter]
        for key in entry.keys() - whole.keys():
            del entry[key]
        for key, value in whole.items():
            own, before = part_of_entry(value, rows), entry.get(key)
            alike = (
                isinstance(own, torch.Tensor)
                and isinstance(before, torch.Tensor)
                and (own.shape, own.dtype) == (before.shape, before.dtype)
            )
            entry[key] = before.copy_(own) if alike and before is not None else own

    def load(self, state: Mapping[str, Any], read: Any, numbered: Mapping[int, Span]) -> None:
        """Load the optimizer's `state_dict` of whole parameters; keep the rows of each.

        See `ParameterStore.load_optimizer_state_dict`.
        """
        saved = dict(state["state"])
        for index, entry in saved.items():
            held = entry if read is None else mapped(entry, read)
            if index in numbered:
                rows = self.rows[numbered[index].name]
                held = {key: part_of_entry(value, rows) for key, value in held.items()}
            saved[index] = held
        self.optimizer.load_state_dict({**state, "state": saved})
        for index, span in numbered.items():
            loaded = self._entry(span.name)
            for key, value in saved.get(index, {}).items():
                if isinstance(value, torch.Tensor) and isinstance(loaded.get(key), torch.Tensor):
                    # The optimizer's own method casts state to the parameter's dtype.
                    own = value.to(loaded[key].device, copy=True)
                    loaded[key] = self._laid_out(span.name, own)

    def _laid_out(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return rows of state with the strides of the weight's rows; see `lay_out_state`."""
        parameter = self.parameters[name]
        if parameter.is_contiguous():
            return value
        rows = self.rows[name].own(parameter.detach())
        return laid_out_as(rows, value) if rows.shape == value.shape else value
