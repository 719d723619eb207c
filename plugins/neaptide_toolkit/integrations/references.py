"""A frozen model beside the trained one, such as DPO's reference, placed by the same plugin.

Its blocks stream for forwards only: it has no gradients and no optimizer state.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import ConfigError, RunConfig
from neaptide.hooks.enabling import configured

from .pieces import SteppedRun
from .refusals import is_placed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn

    from neaptide import PluginSpec

_FILES = "weights"
"""The setting of files with the trained model's weights, which are not the reference's."""


def placing_run(config: RunConfig, ordered: Iterable[PluginSpec], model: nn.Module) -> SteppedRun:
    """Return a run, without a directory, of the plugins that place the model. It trains nothing."""
    chosen = [spec for spec in ordered if is_placed([spec])]
    plugins = {spec.name: config.plugins[spec.name] for spec in chosen}
    alone = attrs.evolve(config, run=RunConfig().run, plugins=plugins)
    stateless = torch.optim.SGD(model.parameters(), lr=0.0)
    return SteppedRun(model, stateless, alone, chosen)


def of_reference(
    config: RunConfig, ordered: Iterable[PluginSpec], *, given: Mapping[str, Any] | bool
) -> RunConfig | None:
    """Return `config` with the settings by which a reference is placed; None if it is not.

    Args:
        config: of the trained model.
        ordered: manifests of the enabled plugins.
        given: settings of the one that places models; True for those of the trained model, without
            files of weights; False for no placement.

    Raises:
        ConfigError: a setting is wrong, or no plugin has it.
    """
    name = next((spec.name for spec in ordered if is_placed([spec])), None)
    if name is None and not isinstance(given, bool):
        msg = "no plugin that is enabled places models; enable layer-streaming @ neaptide_reference"
        raise ConfigError(msg)
    if name is None or given is False:
        return None
    if given is True:
        own = config.plugins[name]
        has = attrs.has(type(own)) and _FILES in attrs.fields_dict(type(own))
        chosen = attrs.evolve(own, **{_FILES: None}) if has else own
    else:
        chosen = configured({"plugins": {name: dict(given)}})[0].plugins[name]
    return attrs.evolve(config, plugins={**config.plugins, name: chosen})


class Reference:
    """A frozen model whose forwards run inside the middleware of evaluations.

    Args:
        model: its forward is replaced.
        begin: returns the run that places it. The run begins with the first forward.
    """

    def __init__(self, model: nn.Module, begin: Callable[[nn.Module], SteppedRun]) -> None:
        self._model, self._begin = model, begin
        self._theirs = theirs = model.forward
        self._run: SteppedRun | None = None
        self._thawed: list[nn.Parameter] = []

        @functools.wraps(theirs)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._forward(*args, **kwargs)

        model.forward = forward

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            msg = "a reference is frozen, and its blocks stream: call it inside torch.no_grad()"
            raise RuntimeError(msg)
        if self._run is None:
            self._run = self._started()
        return self._run.evaluation(functools.partial(self._theirs, *args, **kwargs))

    def _started(self) -> SteppedRun:
        self._thawed = [one for one in self._model.parameters() if one.requires_grad]
        for one in self._thawed:
            one.requires_grad_(False)
        try:
            return self._begin(self._model)
        except ConfigError as error:
            self.end()
            msg = f"the reference model: {error}; see neaptide_reference"
            raise ConfigError(msg) from error

    def end(self, error: BaseException | None = None) -> None:
        """End the run; the weights are then in RAM. The next forward begins another one."""
        run, self._run = self._run, None
        if run is not None:
            run.close(error)
        for one in self._thawed:
            one.requires_grad_()
        self._thawed = []
