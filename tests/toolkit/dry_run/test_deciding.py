"""Dry runs of models and data whose code decides by values."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from torch import nn

from neaptide import Data, HybridTrainer, Task
from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run import assumptions
from neaptide_toolkit.dry_run.assumptions import UnplannableError
from neaptide_toolkit.dry_run.running import DryRun, dry_run
from neaptide_toolkit.testing.allocations import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH, ROWS, LENGTH = 512, 4, 16


class Deciding(nn.Module):
    """A linear layer that is followed by code which reads values."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(WIDTH, 2 * WIDTH), how

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear(rows)
        if self.how == "loop":
            while made.abs().max() > 1e-3:
                made = made / 2
        elif self.how == "guard" and not torch.isfinite(made).all():
            raise ValueError
        elif self.how == "wrong guard" and (made > 1e4).any():
            msg = "too large"
            raise ValueError(msg)
        elif self.how == "sizes":
            made = made[: made.argmax(-1).tolist()[0]]
        return made


class Rows:
    """Batches that are checked by their values, as `while` and `assert` in datasets do."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(4):
            rows = torch.randn(ROWS, 2**17).clamp(-9, 9)
            assert 0 < rows.abs().max().item() < 10
            assert rows.sum().item() != 1.0
            yield rows[:, :WIDTH].contiguous()


def deciding(how: str) -> Task:
    return Task(Deciding(how), lambda model, batch: model(batch).square().mean())


def data() -> Data:
    return Data(Rows(), Rows())


def recurrent(kind: str) -> Task:
    made = getattr(nn, kind)(WIDTH, 128, 2, batch_first=True)
    return Task(made, lambda model, batch: model(batch.view(ROWS, 1, WIDTH))[0].square().mean())


def tokens() -> Data:
    drawn = [torch.randint(3, 128, (ROWS, LENGTH)) for _ in range(4)]
    return Data([{"input_ids": one, "labels": one} for one in drawn])


def mixtral(experts: str) -> Task:
    model = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            vocab_size=128,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            num_local_experts=4,
        )
    )
    model.set_experts_implementation(experts)
    return Task(model, lambda model, batch: model(**batch).loss)


def t5() -> Task:
    sizes: dict[str, Any] = {"vocab_size": 128, "d_model": 128, "d_kv": 64, "d_ff": 256}
    layers: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    config = transformers.T5Config(**sizes, **layers)
    model = transformers.T5ForConditionalGeneration(config)
    return Task(model, lambda model, batch: model(**batch).loss)


def config_of(model: str, given: str, **options: Any) -> Any:
    whole = {
        "model": {"name": f"{__name__}:{model}", "options": options},
        "data": {"name": f"{__name__}:{given}"},
        "train": {"device": "cpu"},
    }
    return configured(whole, ())[0]


def planned(config: Any) -> tuple[DryRun, int]:
    done = dry_run(config, (), "cpu")
    return done, max(one.bytes for one in done.allocations.peaks("device", "host").values())


def measured(config: Any, batches: Data) -> int:
    given = [*islice(batches.train, 3)]
    with counted() as found, HybridTrainer.from_config(config) as trainer:
        for batch in given:
            trainer.step(batch, phase="full")
    return found.peak()


def test_a_guard_against_values_that_are_not_finite_passes() -> None:
    done, peak = planned(config_of("deciding", "data", how="guard"))
    assert not done.assumptions
    assert peak > 4 * 4 * 2 * WIDTH * WIDTH


def test_a_loop_until_a_value_ends_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumptions, "_MANY", 100)
    with pytest.raises(UnplannableError, match=r"has no end here.* @ .*test_deciding\.py:\d+$"):
        planned(config_of("deciding", "data", how="loop"))


def test_an_error_after_an_assumption_names_both() -> None:
    with pytest.raises(UnplannableError, match=r"too large; .* @ .*test_deciding\.py:\d+$"):
        planned(config_of("deciding", "data", how="wrong guard"))


def test_sizes_from_unknown_values_are_refused() -> None:
    with pytest.raises(UnplannableError, match=r"which may be sizes .*test_deciding\.py:\d+$"):
        planned(config_of("deciding", "data", how="sizes"))


def test_data_for_training_and_evaluation_have_values() -> None:
    done, _ = planned(config_of("deciding", "data", how=""))
    assert "evaluate" in done.allocations.peaks("device")


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_take_what_they_keep(kind: str) -> None:
    config = config_of("recurrent", "data", kind=kind)
    assert planned(config)[1] == pytest.approx(measured(config, data()), rel=0.05)


def test_experts_that_are_grouped_take_what_they_take() -> None:
    config = config_of("mixtral", "tokens", experts="grouped_mm")
    assert planned(config)[1] == pytest.approx(measured(config, tokens()), rel=0.05)


def test_experts_that_choose_rows_get_equal_shares() -> None:
    config = config_of("mixtral", "tokens", experts="eager")
    done, peak = planned(config)
    assert peak == pytest.approx(measured(config, tokens()), rel=0.05)
    assert any(
        "all choices are equally frequent" in one and "mixtral" in one for one in done.assumptions
    )
    assert not any("chooses all" in one for one in done.assumptions)


def test_an_encoder_with_a_decoder_takes_what_it_takes() -> None:
    config = config_of("t5", "tokens")
    done, peak = planned(config)
    assert peak == pytest.approx(measured(config, tokens()), rel=0.05)
    assert not done.assumptions
