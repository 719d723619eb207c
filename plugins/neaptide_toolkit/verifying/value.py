"""What a verification found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.io.units import size

if TYPE_CHECKING:
    from .differences import Difference


@attrs.frozen
class VerifyFinding:
    """Something that differs, and who makes it differ."""

    check: str
    """Such as `training`, `tolerance`, `resume`, `evaluation`, `save`, `refused jump`."""
    plugins: tuple[str, ...]
    """The guilty plugin, or the plugins that differ only together. Empty: the model, the data
    or the optimizer, without any plugin."""
    difference: Difference | None
    """The first step, tensor and amount; None if there is no tensor."""
    settings: tuple[str, ...]
    """Settings of the guilty with which it differs, but not with their defaults."""
    says: str
    """The finding in one line, without plugins and settings."""

    @property
    def who(self) -> str:
        """The guilty, in words."""
        if self.plugins:
            names = " with ".join(self.plugins)
            return f"plugin{'s' * (len(self.plugins) > 1)} {names}"
        if self.settings:
            return "a setting of no plugin"
        if self.check == "memory":
            return "the configuration as a whole"
        return "the model, the data or the optimizer, without a plugin"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found = self.difference
        return {
            "check": self.check,
            "plugins": list(self.plugins),
            "settings": list(self.settings),
            "says": self.says,
            "step": found and found.step,
            "module": found and found.module,
            "tensor": found and found.parting.name,
            "gap": found and found.parting.gap,
            "share": found and found.parting.share,
            "kinds": list(found.kinds) if found else [],
        }


@attrs.frozen
class MemoryPeaks:
    """Bytes of tensors at most: in three updates, and in their dry run."""

    measured: int
    planned: int

    @property
    def is_more(self) -> bool:
        """Whether a quarter more was measured than planned, and more than 8 MiB."""
        return self.measured > 1.25 * self.planned + (8 << 20)

    def __str__(self) -> str:
        return f"peak of tensors {size(self.measured)}, planned {size(self.planned)}"


@attrs.frozen
class ModelSlice:
    """The part of a model that was verified in the place of the whole."""

    kept: tuple[str, ...]
    """Names that the blocks that remain have in the whole model."""
    blocks: int
    """Number of blocks of the whole model."""
    needs: int
    """Bytes of weights, gradients and AdamW's state of the whole model."""
    asked: bool
    """Whether the user asked for it; otherwise the whole does not fit in memory."""

    def __str__(self) -> str:
        why = "" if self.asked else f"; all need {size(self.needs)}, which is not free"
        names = ", ".join(self.kept)
        return f"a slice of the model: {len(self.kept)} of {self.blocks} blocks ({names}){why}"


@attrs.frozen
class Verification:
    """The answer of a verification."""

    findings: tuple[VerifyFinding, ...]
    """What differs; empty if all is right."""
    steps: int
    """Updates of each run."""
    against: str
    """What the stack was compared with."""
    exact: tuple[str, ...]
    """Plugins that were compared to the bit."""
    tolerant: tuple[str, ...]
    """Plugins that were compared within their tolerance."""
    common: tuple[str, ...]
    """Plugins that were in both runs, because they build something or change training."""
    checks: tuple[str, ...]
    """What was checked, in one line each."""
    notes: tuple[str, ...]
    """What was not checked, and why."""
    memory: MemoryPeaks | None
    """None if it was not measured."""
    sliced: ModelSlice | None
    """None if the whole model was verified."""
    device: str
    """Such as `cpu`."""
    parameters: int
    """Elements of all weights."""
    seconds: float
    """Of the verification."""
    runs: int
    """Number of runs."""

    @property
    def right(self) -> bool:
        """Whether nothing differs."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "right": self.right,
            **attrs.asdict(self, recurse=False),
            "findings": [one.as_json() for one in self.findings],
            "memory": None if self.memory is None else attrs.asdict(self.memory),
            "sliced": None if self.sliced is None else attrs.asdict(self.sliced),
        }

    def __str__(self) -> str:
        what = f"{self.steps} updates of {self.parameters:,} parameters on {self.device}"
        lines = [
            f"{what}, against {self.against}",
            *([f"  {self.sliced}"] if self.sliced is not None else []),
            *(
                f"  {title}: {', '.join(names)}"
                for title, names in (
                    ("to the bit", self.exact),
                    ("within their tolerance", self.tolerant),
                    ("in both runs", self.common),
                )
                if names
            ),
            *(f"  checked: {one}" for one in self.checks),
            *(f"  note: {one}" for one in self.notes),
        ]
        if self.memory is not None:
            lines.append(f"  memory: {self.memory}")
        for one in self.findings:
            lines += ["", f"{one.check}: {one.who}", f"  {one.says}"]
            lines += [f"  only with {setting}" for setting in one.settings]
        count = len(self.findings)
        where = "" if self.sliced is None else " in the slice"
        verdict = (
            f"right: nothing differs{where}"
            if self.right
            else f"{count} finding{'s' * (count > 1)}"
        )
        took = f"({self.runs} runs, {self.seconds:.1f} s)"
        return "\n".join([*lines, "", f"{verdict} {took}"])
