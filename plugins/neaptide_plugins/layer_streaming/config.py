"""Settings and manifest of `layer-streaming`."""

from __future__ import annotations

from typing import Any, Literal

import attrs
from attrs.validators import ge, gt, optional

from neaptide.config import field
from neaptide.plugin import PluginSpec

_CHOSEN = ("max_active_layers", "optimizer_slots", "micro_batches")
_LADDER = ((3, 4, 1), (2, 2, 1), (3, 4, 2), (2, 2, 2), (2, 2, 4), (2, 2, 8), (1, 1, 8))
"""What a plan chooses of, by `_CHOSEN`: whole batches and many slots first, which take the most."""


def _is_number(least: int) -> Any:
    """Return a validator of `"auto"` and numbers from `least` on."""

    def check(_: Any, attribute: attrs.Attribute[Any], value: int | str) -> None:
        if isinstance(value, int) and value < least:
            msg = f"{attribute.name!r} must be >= {least} or 'auto' (got {value})"
            raise ValueError(msg)

    return check


@attrs.frozen(kw_only=True)
class LayerStreamingConfig:
    """`[plugins.layer-streaming]`."""

    blocks: str | tuple[str, ...] | None = field(
        None,
        help="pattern of the blocks' names, such as `model.layers.*`, or a list of patterns; `**` "
        "stands for any number of names; by default the repeated children of `ModuleList`, "
        "`Sequential` and `ModuleDict`",
    )
    exclude: tuple[str, ...] = field((), help="patterns of blocks that stay on the device")
    mode: Literal["recompute", "graph"] = field(
        "recompute",
        help="`recompute`: a block's inputs are stored, and the backward recomputes the block's "
        "forward; `graph`: the block's activations are stored, and the backward fetches only the "
        "weights",
    )
    weights: str | None = field(
        None,
        help="safetensors with the weights: a file, a directory or a pattern; the model may then "
        "be built on the meta device",
    )
    max_active_layers: int | Literal["auto"] = field(
        2,
        validator=_is_number(1),
        help="number of slots on the device, each as large as the largest block; `auto`: the plan "
        "before the run chooses it, and `prefetch_distance` is one less",
    )
    prefetch_distance: int = field(
        1, validator=ge(0), help="number of blocks fetched ahead of their use"
    )
    resident: int | Literal["auto"] = field(
        "auto",
        validator=_is_number(0),
        help="number of blocks at the end of the model whose weights stay on the device; `auto`: "
        "as many blocks as fit in the GPU memory that is free after the first updates or, if a "
        "plan chooses other settings, in what is free by the plan",
    )
    phases: tuple[Literal["warmup", "full", "predict", "correct"], ...] = field(
        ("warmup", "full", "predict", "correct"),
        help="phases in which blocks are streamed; in the other phases every block stays on the "
        "device",
    )
    micro_batches: int | Literal["auto"] = field(
        1,
        validator=_is_number(1),
        help="number of pieces into which each block splits the batch; the weights are fetched "
        "once for all pieces; `auto`: the plan before the run chooses it",
    )
    inputs: Literal["device", "host", "disk"] = field(
        "device",
        help="where a block's inputs are stored until its backward: `device`, `host`, or, with "
        "the tier `disk`, `disk` for what does not fit in `ram_gib`",
    )
    optimizer_on: Literal["auto", "device", "cpu"] = field(
        "auto",
        help="where the optimizer updates the blocks: `device` copies the optimizer's state to the "
        "device, block by block; `cpu` updates in RAM; `auto` is `device` if the device is a GPU "
        "and the optimizer's state can be streamed, else `cpu`",
    )
    optimizer_slots: int | Literal["auto"] = field(
        2,
        validator=_is_number(1),
        help="number of blocks whose optimizer state is on the device at once; 1 needs half the "
        "memory of 2, but the next block's state is not copied in advance; a CPU needs no copy; "
        "`auto`: the plan before the run chooses it",
    )
    update: Literal["after_backward", "in_backward"] = field(
        "after_backward",
        help="time of the update; `after_backward`: gradients are stored in RAM, and the update "
        "follows the backward; `in_backward`: each block is updated on the device during the "
        "backward, and no gradients are stored",
    )
    clip: Literal["global", "per_tensor", "lagged", "none"] = field(
        "global",
        help="norm for clipping to `train.clip_norm`; `global`: norm of all gradients, which must "
        "be stored; `per_tensor`: norm of each gradient tensor; `lagged`: norm of all gradients "
        'in the previous update; `per_tensor` and `lagged` need `update = "in_backward"`',
    )
    tier: Literal["ram", "disk"] = field(
        "ram",
        help="where blocks' weights and optimizer state are: `ram`; `disk`: what does not fit in "
        "RAM is in a file below `path`, state first; then `optimizer_on` is `device`",
    )
    path: str | tuple[str, ...] | None = field(
        None,
        help='directories on disks, for `tier = "disk"`; several disks share the work',
    )
    ram_gib: float | None = field(
        None,
        validator=optional(ge(0.0)),
        help='RAM for weights and optimizer state with `tier = "disk"`, in GiB; by default three '
        "quarters of the free RAM, or what `host_gib` allows",
    )
    rated_tb: float = field(
        600.0,
        validator=gt(0.0),
        help="terabytes that may be written to the drive by its data sheet, for `endurance_days`",
    )
    endurance_days: float = field(
        180.0,
        validator=ge(0.0),
        help="a run ends if it would reach `rated_tb` in fewer days of training",
    )
    host_gib: float | None = field(
        None,
        validator=optional(gt(0.0)),
        help="limit on the RAM to use, in GiB; by default as much as the machine, the cgroup and "
        "the process allow",
    )
    device_gib: float | None = field(
        None,
        validator=optional(gt(0.0)),
        help="limit on the device memory for slots and for buffers through which gradients are "
        "copied, in GiB; by default all free memory",
    )
    pin: bool = field(
        default=True,
        help="pin the RAM if the device is a GPU; copies of unpinned RAM make the GPU wait",
    )
    master: Literal["weights", "split"] = field(
        "weights",
        help="`split`: the optimizer updates float32 master weights, which take two more bytes per "
        "bfloat16 weight",
    )

    @prefetch_distance.validator
    def _has_slots(self, attribute: attrs.Attribute[int], value: int) -> None:
        if self.max_active_layers != "auto" and value >= max(2, self.max_active_layers):
            msg = (
                f"{attribute.name!r} must be less than max_active_layers = "
                f"{self.max_active_layers} (got {value}): each block fetched ahead needs a slot"
            )
            raise ValueError(msg)

    @micro_batches.validator
    def _is_recomputed(self, attribute: attrs.Attribute[int], value: int | str) -> None:
        if value != 1 and self.mode == "graph":
            msg = f"{attribute.name!r} must be 1 with mode = 'graph' (got {value!r})"
            raise ValueError(msg)

    @inputs.validator
    def _are_kept(self, attribute: attrs.Attribute[str], value: str) -> None:
        if value != "device" and self.mode == "graph":
            msg = f"{attribute.name!r} must be 'device' with mode = 'graph' (got {value!r})"
            raise ValueError(msg)
        if value == "disk" and self.tier != "disk":
            msg = f"{attribute.name!r} must be 'device' or 'host' without tier = 'disk'"
            raise ValueError(msg)

    @update.validator
    def _knows_the_end(self, attribute: attrs.Attribute[str], value: str) -> None:
        if value == "in_backward" and self.mode == "graph":
            msg = (
                f"{attribute.name!r} must be 'after_backward' with mode = 'graph', where the end "
                f"of a block's backward is unknown (got {value!r})"
            )
            raise ValueError(msg)

    @clip.validator
    def _is_possible(self, attribute: attrs.Attribute[str], value: str) -> None:
        if value in ("per_tensor", "lagged") and self.update == "after_backward":
            msg = (
                f"{attribute.name!r} must be 'global' with update = 'after_backward', where it is "
                f"exact and costs no more (got {value!r})"
            )
            raise ValueError(msg)

    @path.validator
    def _is_for_a_disk(self, attribute: attrs.Attribute[Any], value: object) -> None:
        if (self.tier == "disk") != bool(value) or value == ("",):
            on_disk = self.tier == "disk"
            wanted = f"{'must name directories for' if on_disk else 'needs'} tier = 'disk'"
            msg = f"{attribute.name!r} {wanted} (got {value!r} with tier = {self.tier!r})"
            raise ValueError(msg)

    @ram_gib.validator
    def _is_for_a_disk_too(self, attribute: attrs.Attribute[Any], value: float | None) -> None:
        if value is not None and self.tier == "ram":
            msg = f"{attribute.name!r} needs tier = 'disk' (got {value}); host_gib limits the RAM"
            raise ValueError(msg)

    @optimizer_on.validator
    def _steps_in_backward(self, attribute: attrs.Attribute[str], value: str) -> None:
        if value == "cpu" and self.update == "in_backward":
            msg = f"{attribute.name!r} must be 'auto' or 'device' with update = 'in_backward'"
            raise ValueError(msg)
        if value == "cpu" and self.master == "split":
            msg = f"{attribute.name!r} must be 'auto' or 'device' with master = 'split'"
            raise ValueError(msg)
        if value == "cpu" and self.tier == "disk":
            msg = f"{attribute.name!r} must be 'auto' or 'device' with tier = 'disk'"
            raise ValueError(msg)

    def choices(self) -> list[dict[str, int]]:
        """Return what a plan may put in the place of `"auto"`; see `neaptide_toolkit.choosing`."""
        names = [name for name in _CHOSEN if getattr(self, name) == "auto"]
        found: list[dict[str, int]] = []
        for rung in _LADDER if names else ():
            one = {name: value for name, value in zip(_CHOSEN, rung, strict=True) if name in names}
            if "max_active_layers" in one:
                one["prefetch_distance"] = max(1, one["max_active_layers"] - 1)
            if one not in found:
                found.append(one)
        return found

    def filled(self) -> str | None:
        """Return the setting that a plan raises as far as the device allows it, after a choice."""
        return "resident" if self.resident == "auto" else None


SPEC = PluginSpec(
    name="layer-streaming",
    load="neaptide_plugins.layer_streaming.plugin:LayerStreaming",
    config=LayerStreamingConfig,
    summary="Blocks' weights, gradients and optimizer state stream between RAM and the device.",
    claims={"param.storage", "device.placement", "activations"},
    search_space=tuple(
        {"plugins": {"layer-streaming": settings}}
        for settings in (
            {},
            {"update": "in_backward"},
            {"optimizer_on": "cpu"},
            {"update": "in_backward", "inputs": "host"},
            {
                "update": "in_backward",
                "inputs": "host",
                "max_active_layers": 1,
                "optimizer_slots": 1,
            },
        )
    ),
    converts={"deepspeed": "neaptide_plugins.layer_streaming.deepspeed:convert"},
    numerics="exact",
)
