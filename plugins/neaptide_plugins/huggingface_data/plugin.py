"""The plugin that builds the data of a run that names texts or chats."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, DataError, NoConfig, Plugin, hookimpl
from neaptide.api.steps import NOTES
from neaptide.config import structure_options
from neaptide.errors import described
from neaptide_toolkit.machine.pretended import is_pretended

from .config import SPEC

if TYPE_CHECKING:
    from torch import nn

    from neaptide import Data, Run
    from neaptide.api.steps import Probe
    from neaptide.api.task import DataSpec

_NEEDED = {
    "text": ("transformers",),
    "jsonl": ("transformers",),
    "parquet": ("transformers", "pyarrow"),
    "hf": ("transformers", "datasets"),
}


@attrs.define(eq=False)
class HuggingFaceData(Plugin[NoConfig]):
    """Builds `text:GLOB`, `jsonl:GLOB`, `parquet:GLOB` and `hf:DIRECTORY`."""

    _run: Run | None = attrs.field(init=False, default=None)
    _model: Any = attrs.field(init=False, default=None)
    _probe: Any = attrs.field(init=False, default=None)

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, probe: Probe) -> None:
        """Remember the model that the data must fit."""
        self._run, self._model, self._probe = run, model, probe

    @hookimpl
    def on_run_end(self) -> None:
        """Forget the model."""
        self._run = self._model = self._probe = None

    @hookimpl
    def build_data(self, spec: DataSpec) -> Data | None:
        """Tokenize and pack what `[data]` names. The batches have labels for the model's loss."""
        if spec.scheme not in _NEEDED:
            return None
        options = structure_options(SPEC.options["data:*"], spec.options, "data", "options")
        for module in _NEEDED[spec.scheme]:
            if find_spec(module) is None:
                msg = f'{spec.scheme}: needs {module}: pip install "neaptide[hf]" @ data.name'
                raise ConfigError(msg)
        from .preparing import prepare  # noqa: PLC0415 - it needs transformers

        def check(largest: int) -> None:
            self._check_ids(largest)
            if options.pack:
                self._check_documents()

        prepared = prepare(spec, options, check, self._warn)
        if self._run is not None:
            stash = self._run.stash
            stash.set(NOTES, (*(stash.get(NOTES) or ()), prepared.line))
            self._run.log.info("huggingface-data.ready", line=prepared.line)
        return prepared.data

    def _warn(self, line: str) -> None:
        if self._run is not None:
            self._run.log.warning("huggingface-data.repaired", why=line)

    def _check_documents(self) -> None:
        """Refuse a model in which the documents of a sample would see each other."""
        if self._run is None or is_pretended():
            return
        from .isolation import keeps_apart  # noqa: PLC0415 - it needs torch

        model, why = self._model, "they see each other in spite of their position_ids"
        try:
            if keeps_apart(model, self._probe, embedded(model) or 2, self._run.device):
                return
        except (DataError, TypeError, ValueError) as error:  # it does not take them
            why = described(error)
        msg = (
            f"{type(model).__name__} does not keep the documents of a sample apart: {why}; set "
            f"pack = false @ data.options.pack"
        )
        raise ConfigError(msg)

    def _check_ids(self, largest: int) -> None:
        rows = embedded(self._model)
        if rows is not None and largest >= rows:
            msg = (
                f"the tokenizer does not fit the model: its largest id is {largest}, and the model "
                f"has {rows} embeddings; name the model's tokenizer @ data.options.tokenizer"
            )
            raise ConfigError(msg)


def embedded(model: Any) -> int | None:
    """Return the number of tokens that a model of transformers knows; None for another model."""
    if not hasattr(model, "get_input_embeddings"):
        return None
    try:
        found: int | None = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:
        return None
    return found
