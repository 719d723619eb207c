"""Which blocks are found, how they are patched, and what a config error says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from checkpointed import attached
from support import DEVICE, tiny_trainer
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from neaptide import ConfigError, HybridTrainer
from neaptide_toolkit.recompute import find_blocks

HINT = "; use matmul, attention or a name such as aten.mm"


def linears(count: int) -> list[nn.Module]:
    return [nn.Linear(2, 2) for _ in range(count)]


def names(model: nn.Module, *given: Any) -> list[str]:
    return [name for name, _ in find_blocks(model, *given)]


class Encoder(nn.Module):
    """Blocks at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(*linears(2), nn.ReLU()) for _ in range(3))
        self.only = nn.ModuleList(linears(1))
        self.tail = nn.Sequential(nn.ReLU(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))


def test_the_outermost_repeated_children_are_blocks() -> None:
    expected = ["layers.0", "layers.1", "layers.2", "tail.1", "tail.3"]
    assert expected == names(Encoder())


def test_a_model_that_is_a_container_itself_has_blocks() -> None:
    assert ["0", "2"] == names(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))


def test_a_module_in_the_list_twice_is_one_block() -> None:
    one, other = linears(2)
    assert ["0", "1"] == names(nn.ModuleList([one, other, one, other]))


def test_a_list_that_blocks_share_is_theirs() -> None:
    shared = nn.ModuleList(linears(2))
    layers = nn.ModuleList(nn.Sequential(*linears(1), shared[0], shared[1]) for _ in range(2))
    model = nn.ModuleDict({"shared": shared, "layers": layers})
    assert ["layers.0", "layers.1"] == names(model)


def test_the_blocks_of_a_module_dict_are_found() -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(2), nn.ReLU())

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleDict({"first": block(), "second": block()})

    assert ["blocks.first", "blocks.second"] == names(Named())


def test_layers_of_a_module_dict_are_no_blocks_beside_a_list() -> None:
    """As in a GPT whose embeddings and list of blocks are in one dict."""
    inner = {"tokens": nn.Embedding(4, 2), "places": nn.Embedding(4, 2)}
    model = nn.ModuleDict(
        {**inner, "layers": nn.ModuleList(nn.Sequential(*linears(1)) for _ in "ab")}
    )
    assert ["layers.0", "layers.1"] == names(model)


def test_what_is_never_called_is_no_block_but_what_is_in_it() -> None:
    pairs = nn.ModuleList(nn.ModuleList([nn.LayerNorm(2), *linears(1)]) for _ in range(2))
    assert ["0.0", "0.1", "1.0", "1.1"] == names(pairs)
    named = nn.ModuleList(nn.ModuleDict({"deep": nn.ModuleList(linears(1))}) for _ in range(2))
    assert ["0.deep.0", "1.deep.0"] == names(named)
    with pytest.raises(ValueError, match=r"'0' is a ModuleList, which has no forward .*'\*\.\*'"):
        names(pairs, "*")


@pytest.mark.parametrize(
    ("pattern", "exclude", "expected"),
    [
        ("layers.*", (), ["layers.0", "layers.1", "layers.2"]),
        ("layers.[02]", (), ["layers.0", "layers.2"]),
        ("*.1", (), ["layers.1", "tail.1"]),
        ("layers.*.0", (), ["layers.0.0", "layers.1.0", "layers.2.0"]),
        ("layers.*", ("layers.1",), ["layers.0", "layers.2"]),
        (None, ("layers.*", "tail.1"), ["tail.3"]),
        (("tail.[13]", "layers.*"), (), ["layers.0", "layers.1", "layers.2", "tail.1", "tail.3"]),
        ("**.1", ("layers.1",), ["layers.0.1", "layers.1.1", "layers.2.1", "tail.1"]),
        ("**.0.0", (), ["layers.0.0"]),
        ("layers.**.1.**.1", (), ["layers.1.1"]),
        ("tail.**", ("tail", "tail.[02]"), ["tail.1", "tail.3"]),
    ],
)
def test_a_star_stays_within_one_part_of_the_name(
    pattern: str | tuple[str, ...] | None, exclude: tuple[str, ...], expected: list[str]
) -> None:
    assert expected == names(Encoder(), pattern, exclude)


@pytest.mark.parametrize("pattern", ["layers.**.0", ("layers.*", "layers.0.0")])
def test_a_block_inside_another_is_refused(pattern: str | tuple[str, ...]) -> None:
    inside = r"'layers\.0\.0' is a part of the block 'layers\.0'; exclude one of them"
    with pytest.raises(ValueError, match=inside):
        names(Encoder(), pattern)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"blocks": ["blocks.*", "block.*"]},
            "no module name matches 'block.*' (did you mean 'blocks.3'?)",
        ),
        ({"blocks": "block.*"}, "no module name matches 'block.*' (did you mean 'blocks.3'?)"),
        (
            {"exclude": ["blocks.7"]},
            "no module name matches 'blocks.7' (did you mean 'blocks.3'?)",
        ),
        ({"save_ops": ["matmull"]}, f"there is no op 'matmull' (did you mean 'matmul'?){HINT}"),
        (
            {"save_ops": ["aten.convolutio"]},
            f"there is no op 'aten.convolutio' (did you mean 'aten.convolution'?){HINT}",
        ),
        ({"save_ops": ["matmul", "?"]}, f"there is no op '?'{HINT}"),
    ],
)
def test_a_name_that_matches_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny_trainer({"plugins": {"activation-checkpointing": settings}})
    assert f"{message} @ plugins.activation-checkpointing" == str(caught.value)


@pytest.mark.parametrize(
    ("settings", "where"),
    [({"interval": 0}, "interval"), ({"ratio": 0.0}, "ratio"), ({"ratio": 1.5}, "ratio")],
)
def test_a_setting_out_of_its_range_is_refused(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError, match=f"plugins.activation-checkpointing.{where}"):
        tiny_trainer({"plugins": {"activation-checkpointing": settings}})


def test_a_model_without_blocks_is_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigError) as caught:
        HybridTrainer(
            model,
            torch.optim.SGD(model.parameters()),
            config={"plugins": {"activation-checkpointing": {}}},
        )
    expected = (
        "Linear has no repeated blocks in a ModuleList, Sequential or ModuleDict; set a pattern of "
        "the blocks' names such as 'encoder.*' @ plugins.activation-checkpointing.blocks"
    )
    assert expected == str(caught.value)


def test_the_end_of_a_run_leaves_no_patch_behind() -> None:
    trainer, batches = tiny_trainer({"plugins": {"activation-checkpointing": {}}})
    with trainer:
        trainer.step(batches[0])
        patched = ["forward" in vars(block) for block in trainer.model.blocks]
    assert [True] * 4 == patched
    assert [False] * 4 == ["forward" in vars(block) for block in trainer.model.blocks]


def test_detach_restores_the_very_dict_a_forward_of_the_users_included() -> None:
    model = nn.Sequential(*linears(3))

    def own(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    model[1].forward = own
    before = [dict(vars(block)) for block in model]
    segments = attached(model)
    model(torch.randn(2, 2, device=DEVICE)).sum().backward()
    segments.detach()
    after = [dict(vars(block)) for block in model]
    assert [list(each) for each in before] == [list(each) for each in after]
    assert all(
        one[key] is other[key] for one, other in zip(before, after, strict=True) for key in one
    )


def test_a_copy_of_a_patched_model_computes_with_its_own_weights() -> None:
    model = nn.Sequential(*linears(3))
    segments = attached(model)
    twin = copy.deepcopy(model)
    x = torch.randn(4, 2, device=DEVICE)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin(x).sum().backward()
    assert torch.equal(torch.zeros(4, 2, device=DEVICE), twin(x))
    assert not torch.equal(torch.zeros(4, 2, device=DEVICE), model(x))
    assert [None] * 6 == [parameter.grad for parameter in model.parameters()]
    segments.detach()
    assert torch.equal(torch.zeros(4, 2, device=DEVICE), twin(x))


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1.0, [0, 1, 2, 3, 4, 5]), (0.5, [0, 2, 4]), (0.34, [0, 3]), (0.01, [0])],
)
def test_the_ratio_chooses_segments_evenly_and_at_least_one(
    ratio: float, expected: list[int]
) -> None:
    model = nn.Sequential(*linears(6))
    segments = attached(model, interval=1, ratio=ratio)
    dropped = []
    x = torch.randn(4, 2, device=DEVICE, requires_grad=True)
    for block in model:
        segments.reset_statistics()
        block(x)
        dropped.append(segments.dropped_bytes > 0)
    assert expected == [index for index, each in enumerate(dropped) if each]


def test_a_weight_that_wraps_others_is_not_dropped_and_an_activation_is_counted_once() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(TwoTensor(torch.ones(100), torch.ones(100)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wrapped = TwoTensor(x, x.clone())
            return (wrapped * self.scale * wrapped).a

    model = nn.Sequential(Scaled(), Scaled())
    segments = attached(model, interval=2)
    segments.reset_statistics()
    model[0](torch.ones(100, device=DEVICE, requires_grad=True))
    assert 800 * 2 == segments.dropped_bytes  # the input, both parts, and its product


@pytest.mark.parametrize("phases", [["full"], ["warmup", "correct"]])
def test_only_the_phases_asked_for_are_checkpointed(phases: list[str]) -> None:
    trainer, batches = tiny_trainer({"plugins": {"activation-checkpointing": {"phases": phases}}})
    with trainer:
        segments = trainer.hooks.plugins["activation-checkpointing"]._segments
        found = []
        for phase in ("warmup", "full", "correct"):
            trainer.step(batches[0], phase=phase)
            if segments.dropped_bytes:
                found.append(phase)
    assert phases == found


def test_the_last_forwards_bytes_are_metrics_and_evaluations_do_not_count() -> None:
    trainer, batches = tiny_trainer({"plugins": {"activation-checkpointing": {"interval": 4}}})
    with trainer:
        trainer.step(batches[0])
        plugin = trainer.hooks.plugins["activation-checkpointing"]
        trained = plugin.collect_metrics()
        trainer.evaluate(batches[:1])
        assert trained == plugin.collect_metrics()
    assert trained["dropped_bytes"] > 5 * trained["kept_bytes"] > 0
