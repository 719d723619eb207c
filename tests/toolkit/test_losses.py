"""Without a loss_fn, the mean is over the targets that count, however the batch is split."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from architectures import causal, gpt2, made, sizes, t5
from hypothesis import given, settings
from hypothesis import strategies as st
from support import CYCLE, same_tensors, tensors_of
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from neaptide import DataError, HybridTrainer, Loss, ModelError
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*loss_type=None.*")
VOCABULARY, LENGTH = 64, 8
SPLIT = {"gradient-accumulation": {"steps": 2}}


def tokens(rows: int = 4, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return sequences; of the first half of the rows, most targets do not count."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (rows, LENGTH), generator=generator)
    labels = ids.clone()
    labels[: rows // 2, 2:] = -100
    return {"input_ids": ids, "labels": labels}


MODELS: dict[str, Callable[[], nn.Module]] = {
    "causal": lambda: causal("Llama"),
    "causal, tied": gpt2,
    "masked": lambda: made("Bert", "ForMaskedLM", **sizes(16)),
    "encoder and decoder": t5,
    "a class per token": lambda: made("Bert", "ForTokenClassification", **sizes(16), num_labels=64),
}


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for name in [name for name in vars(module) if "drop" in name]:
            setattr(module, name, 0.0)
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return without_dropout(MODELS[name]())


def trained(
    model: nn.Module, batches: list[Any], plugins: dict[str, Any], loss_fn: Any = None
) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    config = {"plugins": plugins}
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        for batch in batches:
            trainer.step(batch)
    return tensors_of(model)


def plain(model: nn.Module, batches: list[Any]) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in batches:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return tensors_of(model)


def distance(start: nn.Module, one: Any, other: Any) -> float:
    """Return how far two updates are apart, in lengths of the first."""
    before = tensors_of(start)
    length = sum(float((one[name] - before[name]).square().sum()) for name in before)
    gap = sum(float((one[name] - other[name]).square().sum()) for name in before)
    return (gap / length) ** 0.5


@pytest.mark.parametrize("name", MODELS)
def test_micro_batches_make_the_update_of_the_whole_batch(name: str) -> None:
    model, batches = built(name), [tokens(seed=seed) for seed in range(3)]
    whole = plain(copy.deepcopy(model), batches)
    assert distance(model, whole, trained(copy.deepcopy(model), batches, SPLIT)) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_that_is_not_split_has_the_bits_of_the_plain_loop(name: str) -> None:
    model, batches = built(name), [tokens(seed=seed) for seed in range(3)]
    whole = plain(copy.deepcopy(model), batches)
    assert same_tensors(whole, trained(copy.deepcopy(model), batches, {}))


def test_steps_that_share_an_update_are_weighed_by_their_targets() -> None:
    model, batch = built("causal"), tokens(6)
    calls = [{key: value[rows] for key, value in batch.items()} for rows in (slice(4), slice(4, 6))]
    plugins = {"gradient-accumulation": {"steps": 2, "across_steps": True}}
    whole = plain(copy.deepcopy(model), [batch])
    assert distance(model, whole, trained(copy.deepcopy(model), calls, plugins)) < 1e-4


@given(rows=st.lists(st.integers(0, LENGTH), min_size=2, max_size=7), steps=st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_any_number_of_targets_a_row_is_weighed(rows: list[int], steps: int) -> None:
    """Also rows and micro-batches without a target."""
    batch = tokens(len(rows))
    batch["labels"] = batch["input_ids"].clone()
    for row, counted in enumerate(rows):
        batch["labels"][row, counted:] = -100
    if max(rows) < 2:
        batch["labels"][0] = batch["input_ids"][0]  # a mean over nothing is not a loss
    model = built("causal")
    whole = plain(copy.deepcopy(model), [tokens(), batch])
    split = {"gradient-accumulation": {"steps": steps}}
    assert distance(model, whole, trained(copy.deepcopy(model), [tokens(), batch], split)) < 1e-4


def to(dtype: torch.dtype, model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(dtype)


def repeating(model: nn.Module) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return the model after it has learned to repeat a token, and a batch of four tokens.

    In the first rows each position has the same loss, so that they do not tell the means apart.
    """
    ids = torch.tensor([[token] * LENGTH for token in (7, 8)] + [[5, 9] * 4, [9, 5] * 4])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(60):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, {"input_ids": ids, "labels": ids.clone()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_first_micro_batch_that_tells_no_means_apart_is_weighed_as_the_others(
    dtype: torch.dtype,
) -> None:
    model, batch = repeating(built("causal"))
    whole = plain(to(dtype, model), [batch])
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    assert distance(model, whole, trained(to(dtype, model), [batch], SPLIT)) < tolerance


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("items", [True, False])
def test_a_model_in_bfloat16_that_has_learned_nothing_is_weighed_by_its_targets(
    *, masked: bool, items: bool
) -> None:
    model, batch = built("causal").bfloat16(), tokens()
    if not masked:
        batch["labels"] = batch["input_ids"].clone()
    if items:
        batch["num_items_in_batch"] = (batch["labels"][:, 1:] != -100).sum()
    whole = plain(copy.deepcopy(model), [batch])
    assert distance(model, whole, trained(copy.deepcopy(model), [batch], SPLIT)) < 2e-2


def test_under_mixed_precision_the_targets_are_counted_from_the_first_step() -> None:
    model, batch = built("causal"), tokens()
    lowered = {"mixed-precision": {"dtype": "bf16"}}
    whole = trained(copy.deepcopy(model), [batch], lowered)
    split = trained(copy.deepcopy(model), [batch], {**lowered, **SPLIT})
    assert distance(model, whole, split) < 2e-2


def test_a_first_micro_batch_without_a_target_adds_nothing() -> None:
    model, batch = built("causal"), tokens()
    batch["labels"] = batch["input_ids"].clone()
    batch["labels"][:2] = -100
    whole = plain(copy.deepcopy(model), [batch])
    assert distance(model, whole, trained(copy.deepcopy(model), [batch], SPLIT)) < 1e-4


def test_sequences_of_other_lengths_are_refused_where_no_count_is_known() -> None:
    plugins = {"gradient-accumulation": {"steps": 2, "across_steps": True}}
    calls = [{"ids": torch.ones(2, length, dtype=torch.int64)} for length in (2, 16)]

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch["ids"]).square().mean()

    with pytest.raises(DataError, match="different numbers of targets a sample"):
        trained(nn.Embedding(4, 3), calls, plugins, loss_fn)
    trained(nn.Embedding(4, 3), [calls[0]] * 2, plugins, loss_fn)


def test_losses_in_different_units_make_no_update() -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> Any:
        loss = model(batch).square()
        return loss.mean() if batch[0, 0] > 0 else Loss(loss.sum(), loss.numel())

    batch = torch.tensor([[1.0], [-1.0]])
    with pytest.raises(DataError, match="in different units"):
        trained(nn.Linear(1, 1), [batch], SPLIT, loss_fn)


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_an_evaluation_of_a_model_in_bfloat16_is_the_mean_over_all_targets(name: str) -> None:
    model, batches = built(name).bfloat16(), [tokens(4, seed=1), tokens(2, seed=2)]
    with HybridTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1)) as trainer:
        found = trainer.evaluate(batches)
    shift = int(name == "causal")
    counts = [int((batch["labels"][:, shift:] != -100).sum()) for batch in batches]
    with torch.no_grad():
        means = [float(model(**batch).loss) for batch in batches]
    expected = sum(map(float.__mul__, means, map(float, counts))) / sum(counts)
    assert expected == pytest.approx(found, rel=1e-5)


def test_a_loss_that_needs_gradients_is_probed_and_evaluated() -> None:
    def penalised(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        x = batch.clone().requires_grad_()
        output = model(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output.square().mean() + slope.square().mean()

    model, batch = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(8, 4)
    trainer = HybridTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        loss_fn=penalised,
        config={"phases": CYCLE},
        plugins=[STEADY_PREDICTOR],
    )
    with trainer:
        results = [trainer.step(batch) for _ in range(12)]
        assert any(result.was_predicted for result in results)
        assert float(penalised(model, batch).detach()) == pytest.approx(trainer.evaluate([batch]))


def test_a_loss_with_a_backward_of_its_own_leaves_no_gradient_in_an_evaluation() -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        model(2 * batch).square().mean().backward()
        return model(batch).square().mean()

    model, batch = nn.Linear(4, 1), torch.ones(2, 4)
    with HybridTrainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn=loss_fn
    ) as trainer:
        trainer.step(batch)
        with pytest.raises(ModelError, match="loss_fn runs a backward of its own"):
            trainer.evaluate([batch])
        assert [None, None] == [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_an_evaluation_is_the_mean_over_all_targets(name: str) -> None:
    model, batches = built(name), [tokens(4, seed=1), tokens(2, seed=2)]
    whole = {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
    with HybridTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1)) as trainer:
        found = trainer.evaluate(batches)
    with torch.no_grad():
        assert float(model(**whole).loss) == pytest.approx(found, rel=1e-5)


def test_a_loss_divided_by_the_items_of_the_batch_is_a_sum() -> None:
    model, batch = built("causal"), tokens()
    items = (batch["labels"][:, 1:] != -100).sum()
    whole = plain(copy.deepcopy(model), [batch])
    given = {**batch, "num_items_in_batch": items}
    assert distance(model, whole, trained(copy.deepcopy(model), [given], SPLIT)) < 1e-4


def test_classes_of_samples_are_weighed_by_samples() -> None:
    torch.manual_seed(0)
    model = without_dropout(made("Bert", "ForSequenceClassification", **sizes(16), num_labels=3))
    batch = {"input_ids": tokens(5)["input_ids"], "labels": torch.tensor([0, 2, 1, 1, 0])}
    whole = plain(copy.deepcopy(model), [batch])
    assert distance(model, whole, trained(copy.deepcopy(model), [batch], SPLIT)) < 1e-4


class Smoothed(nn.Module):
    """Its loss is no plain cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = built("causal")

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> CausalLMOutput:
        out = self.inner(input_ids=input_ids, labels=labels)
        return CausalLMOutput(loss=out.loss + 0.1 * out.logits.square().mean(), logits=out.logits)


def mean_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(**batch).loss


@pytest.mark.parametrize(("model", "loss_fn"), [(Smoothed, None), (MODELS["causal"], mean_of)])
def test_means_over_unknown_numbers_of_targets_are_refused(model: Any, loss_fn: Any) -> None:
    with pytest.raises(DataError, match=r"returns neaptide\.Loss\(sum of the losses") as caught:
        trained(model(), [tokens()], SPLIT, loss_fn)
    assert "\n" not in str(caught.value)
    trained(model(), [tokens()], {}, loss_fn)
    equal = tokens()
    equal["labels"] = equal["input_ids"]
    trained(model(), [equal], SPLIT, loss_fn)


def test_means_over_unknown_numbers_of_targets_are_refused_across_steps() -> None:
    batch = tokens()
    calls = [{key: value[rows] for key, value in batch.items()} for rows in (slice(2), slice(2, 4))]
    plugins = {"gradient-accumulation": {"steps": 2, "across_steps": True}}
    model = built("causal")
    with pytest.raises(DataError, match="different numbers of targets a sample"):
        trained(model, calls, plugins, mean_of)


def test_the_way_out_of_the_refusal_trains_right() -> None:
    def counted(model: nn.Module, batch: Any) -> Loss:
        count = (batch["labels"][:, 1:] != -100).sum()
        loss = torch.nn.functional.cross_entropy(
            model(batch["input_ids"]).logits[:, :-1].flatten(0, 1),
            batch["labels"][:, 1:].flatten(),
            reduction="sum",
        )
        return Loss(loss, count)

    model, batch = built("causal"), tokens()
    whole = plain(copy.deepcopy(model), [batch])
    assert distance(model, whole, trained(copy.deepcopy(model), [batch], SPLIT, counted)) < 1e-4


def test_labels_outside_the_classes_are_no_cross_entropy() -> None:
    """As 255 in the labels of a segmentation: a lookup of it would end a CUDA process."""

    class Ranked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> CausalLMOutput:
            logits = self.layer(x)
            return CausalLMOutput((logits.sum(-1) - labels).square().mean(), logits)

    batch = {"x": torch.randn(4, 4), "labels": torch.tensor([255, 1, 0, 7])}
    model = Ranked()
    whole = plain(copy.deepcopy(model), [batch])
    assert distance(model, whole, trained(copy.deepcopy(model), [batch], SPLIT)) < 1e-4


def events_of(model: nn.Module, batch: Any, loss_fn: Any, directory: Any) -> int:
    """Return how often a run says that its loss is one per token."""
    config = {"run": {"dir": str(directory / "run")}}
    with HybridTrainer(model, loss_fn=loss_fn, config=config) as trainer:
        for _ in range(3):
            trainer.step(batch)
    return (directory / "run/events.jsonl").read_text(encoding="utf-8").count('"loss.per_token"')


def test_a_model_s_own_loss_over_tokens_is_said_to_be_one(tmp_path: Path) -> None:
    assert 1 == events_of(built("causal"), tokens(), None, tmp_path)


class Classifier(nn.Module):
    """Returns the cross-entropy of a class per sample, as models of images do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> CausalLMOutput:
        logits = self.layer(x)
        return CausalLMOutput(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def test_a_loss_over_classes_of_samples_is_not(tmp_path: Path) -> None:
    batch = {"x": torch.randn(8, 4), "labels": torch.arange(8) % 3}
    assert 0 == events_of(Classifier(), batch, None, tmp_path)


@pytest.mark.parametrize("per_token", [True, False])
def test_a_loss_fn_says_itself_whether_its_loss_is_per_token(
    tmp_path: Path, *, per_token: bool
) -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> Loss:
        return Loss(model(batch).square().sum(), batch.numel(), per_token=per_token)

    assert per_token == events_of(nn.Linear(4, 4), torch.ones(2, 4), loss_fn, tmp_path)
