"""Attention for models of transformers, through its attention interface, for the time of a run."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from neaptide_kernels.attention import attention

from .functional import hindrance
from .masks import dense, is_ranges, mask_of
from .sources import why_not
from .tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_REPLACED = {"sdpa", "eager"}
_names = count()


class Interfaces:
    """Makes models use `attention`, until `restore` is called."""

    def __init__(self, tally: Tally) -> None:
        self._name = f"neaptide-attention-{next(_names)}"
        self._before: list[tuple[Any, str]] = []
        AttentionInterface.register(self._name, _attention_for(tally))
        AttentionMaskInterface.register(self._name, mask_of)

    def replace(self, model: nn.Module) -> dict[str, str]:
        """Use `attention` in each model of transformers inside `model`.

        Returns the models that are left as they are, by name, with the reasons.
        """
        left = {}
        parts: dict[int, list[tuple[str, Any]]] = {}
        for name, part in model.named_modules():
            if isinstance(part, PreTrainedModel):
                parts.setdefault(id(part.config), []).append((name, part))
        for (name, first), *others in parts.values():
            config = first.config
            models = [first, *(part for _, part in others)]
            reason = _why_not(first) or next(filter(None, (why_not(m, config) for m in models)), "")
            if reason:
                left[name or type(first).__name__] = reason
                continue
            self._before.append((config, config._attn_implementation))
        # A config passes what is set on to its parts, so the outer ones come first.
        for config, _ in self._before:
            config._attn_implementation_internal = self._name
        return left

    def restore(self) -> None:
        """Undo everything.

        Copies of a config that were made meanwhile keep the plugin's name, so it stays known, as
        another name of transformers' `sdpa`.
        """
        for config, before in self._before:
            config._attn_implementation_internal = before
        self._before.clear()
        AttentionInterface.register(self._name, _as_sdpa)
        AttentionMaskInterface.register(self._name, sdpa_mask)


def _why_not(model: Any) -> str:
    implementation = model.config._attn_implementation
    ended = AttentionInterface._global_mapping.get(implementation) is _as_sdpa
    if implementation not in _REPLACED and not ended:
        return f"attn_implementation is {implementation!r}"
    if getattr(model.config, "output_attentions", False):
        return "output_attentions is set"
    limited = getattr(model.config, "attn_logit_softcapping", None) is not None
    if not (model._supports_sdpa or limited):
        return "it supports no attention but its own"
    return ""


def _attention_for(tally: Tally) -> Callable[..., Any]:
    def attend(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,  # noqa: FBT001 - transformers' signature
        softcap: float | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        n, m = query.shape[2], key.shape[2]
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        causal = attention_mask is None and n > 1 and bool(is_causal)
        if (
            not (causal and n != m)
            and _is_served(attention_mask, m, others)
            and not hindrance(tally)
        ):
            ranges, bias = _split(attention_mask, m)
            tally.replace(dense=bias is not None)
            output = attention(
                query, key, value, bias=bias, ranges=ranges, causal=causal, scale=scaling,
                softcap=softcap, dropout=dropout,
            )  # fmt: skip
            return output.transpose(1, 2).contiguous(), None
        # torch's function counts the call.
        if attention_mask is not None and is_ranges(attention_mask, m):
            attention_mask = dense(attention_mask, m)
        given: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        if softcap is not None:
            given["softcap"] = softcap
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **given, **others
        )
        return result

    return attend


def _as_sdpa(
    module: nn.Module, *tensors: Any, softcap: float | None = None, **others: Any
) -> tuple[torch.Tensor, None]:
    """Compute attention for a copy of a model, after the run; transformers' own has no softcap."""
    compute: Callable[..., tuple[torch.Tensor, None]] = sdpa_attention_forward
    if softcap is not None:
        compute, others = _attention_for(Tally()), {**others, "softcap": softcap}
    return compute(module, *tensors, **others)


def _is_served(mask: torch.Tensor | None, keys: int, others: dict[str, Any]) -> bool:
    """Return whether `attention` takes a mask. torch says what is wrong with one of integers."""
    if others.get("position_bias") is not None:
        return False
    if mask is None:
        return True
    known = mask.is_floating_point() or mask.dtype == torch.bool or is_ranges(mask, keys)
    return known and not (mask.requires_grad and torch.is_grad_enabled())


def _split(mask: torch.Tensor | None, keys: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the ranges of a mask, or its elements."""
    if mask is None:
        return None, None
    return (mask[:, 0], None) if is_ranges(mask, keys) else (None, mask)
